"""A forward convolution whose weights stay the same: they are laid out once, and a run allocates nothing of size."""
import math

import numpy as np

from znn.codegen import target
from znn.codegen.group import Group, members
from znn.codegen.plan import Epilogue
from znn.runtime import arena, conv, driver, matrix
from znn.runtime.arrays import valid
from znn.runtime.groups import grouped
from znn.runtime.quantised import fours


class Convolution:
    """`conv.forward` for inputs of one shape and fixed weights.

    Parameters
    ----------
    x_shape : (int, int, int, int, int)
    w, bias : ndarray
        As for `conv.forward`; they are not looked at again.
    dilation, activation
        As for `conv.forward`.
    onto : bool
        Whether a run adds to what is in its output.
    operands : Group, optional
        The elements that x comes in and the weights are rounded to; those of w unless given. Weights of integers are
        int8.
    stores : Group, optional
        The elements that y is stored in; numbers of the type that is summed in unless given.
    factors : ndarray of float32, optional
        What sums of integers are multiplied by, before anything else is done to them; a number for each output.
    zero : int
        Added to what is stored as integers.
    mix, mix_bias : ndarray of float32, (mixes, out, 1, 1, 1) and (mixes,), optional
        Weights and bias of a convolution of one voxel that follows, and whose result is written in place of the first
        one's; `mixing` makes them where that can be done.

    Attributes
    ----------
    scratch_shape : tuple of int
        Of the memory that a run on the threads at hand works in; elements are of the size of those of w.
    """

    def __init__(self, x_shape, w, bias=None, dilation=(1, 1, 1), activation=None, onto=False, operands=None,
                 stores=None, factors=None, zero=0, mix=None, mix_bias=None):
        if factors is not None and bias is None:
            bias = np.zeros_like(factors)
        epilogue = Epilogue(onto, bias is not None, activation, stores, zero, 0 if mix is None else len(mix))
        w, self._bias, factors = (a if a is None else _filled_up(a, members(stores)) for a in (w, bias, factors))
        if factors is not None:
            self._bias = np.concatenate([self._bias, factors])
        dtype = operands or w.dtype
        self._tiles, self._kernels = conv.forward_way(tuple(x_shape), w.shape, dilation, epilogue, dtype)
        if mix is not None:
            self._bias = self._tiles.constants(self._bias, mix, mix_bias)
        if self._tiles:
            self._weights = self._tiles.weights(w)
        else:
            if isinstance(operands, Group):
                w = fours(w, axis=1) if operands.integers else grouped(w, operands, axis=1)
            self._weights = [k.pack(w) for k in self._kernels]
        self.scratch_shape = self._tiles.scratch_shape() if self._tiles else (0,)

    def run(self, y, x, scratch):
        """Write the convolution of x into y (n, out, z, y, x).

        Parameters
        ----------
        y, x : ndarray
            Contiguous, of the types of the weights, or elements (n, elements, z, y, x) of groups.
        scratch : ndarray
            Of `scratch_shape`, contiguous; no other run may work in it at the same time.
        """
        if self._tiles:
            self._tiles.launch(y, x, self._weights, scratch, self._bias)
        else:
            driver.run([k.piece(y, x, w, self._bias) for k, w in zip(self._kernels, self._weights)])


class TwoConvolutions:
    """A convolution and one of one voxel that mixes its channels, with what lies between in the scratch memory.

    Parameters are those of `Convolution`, which does both at once where it can; so are `scratch_shape` and `run`.
    """

    def __init__(self, x_shape, w, bias, dilation, activation, operands, mix, mix_bias):
        self._between = (x_shape[0], len(w), *valid(x_shape, w.shape[2:], dilation))
        self._first = Convolution(x_shape, w, bias, dilation, activation, operands=operands)
        self._second = Convolution(self._between, mix, mix_bias)
        sizes = [math.prod(c.scratch_shape) for c in (self._first, self._second)]
        self._held = arena.pitch(math.prod(self._between), mix.dtype)
        self.scratch_shape = (self._held + max(sizes),)

    def run(self, y, x, scratch):
        between, rest = scratch[:math.prod(self._between)].reshape(self._between), scratch[self._held:]
        for convolution, out, read in ((self._first, between, x), (self._second, y, between)):
            shape = convolution.scratch_shape
            convolution.run(out, read, rest[:math.prod(shape)].reshape(shape))


def mixing(x_shape, w, bias, dilation, activation, operands, mix, mix_bias):
    """A `Convolution` that mixes its channels or, where no kernel does both, `TwoConvolutions`, whose parameters these
    are."""
    made = Convolution if matrix.usable(operands, target.current()) else TwoConvolutions
    return made(x_shape, w, bias, dilation, activation, operands=operands, mix=mix, mix_bias=mix_bias)


def _filled_up(array, count):
    """A contiguous copy with zeros for further outputs, up to a multiple of `count`."""
    return np.concatenate([array, np.zeros((-len(array) % count, *array.shape[1:]), array.dtype)])
