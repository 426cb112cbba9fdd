"""A forward convolution whose weights stay the same: they are laid out once, and a run allocates nothing of size."""
import numpy as np

from znn.codegen.group import Group, members
from znn.codegen.plan import Epilogue
from znn.runtime import conv, driver
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

    Attributes
    ----------
    scratch_shape : tuple of int
        Of the memory that a run on the threads at hand works in; elements are of the size of those of w.
    """

    def __init__(self, x_shape, w, bias=None, dilation=(1, 1, 1), activation=None, onto=False, operands=None,
                 stores=None, factors=None, zero=0):
        if factors is not None and bias is None:
            bias = np.zeros_like(factors)
        epilogue = Epilogue(onto, bias is not None, activation, stores, zero)
        w, self._bias, factors = (a if a is None else _filled_up(a, members(stores)) for a in (w, bias, factors))
        if factors is not None:
            self._bias = np.concatenate([self._bias, factors])
        dtype = operands or w.dtype
        self._tiles, self._kernels = conv.forward_way(tuple(x_shape), w.shape, dilation, epilogue, dtype)
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


def _filled_up(array, count):
    """A contiguous copy with zeros for further outputs, up to a multiple of `count`."""
    return np.concatenate([array, np.zeros((-len(array) % count, *array.shape[1:]), array.dtype)])
