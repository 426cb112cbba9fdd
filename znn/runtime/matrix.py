"""Convolutions of narrow numbers on the processor's matrix unit, where it has one (`znn.codegen.matrix`)."""
import math

import numpy as np

from znn.codegen import matrix
from znn.codegen.group import Group, elements
from znn.codegen.matrix_tiles import Tiling
from znn.runtime import arena, arrays, driver, kernel, switches
from znn.runtime.groups import grouped
from znn.runtime.quantised import fours


def usable(dtype, where):
    """Whether convolutions of elements of a type, a numpy dtype or a Group, are computed on a matrix unit."""
    return isinstance(dtype, Group) and switches.on("ZNN_MATRIX_UNIT") and matrix.supports(where, dtype)


def made(x_shape, co, taps, dilation, dtype, epilogue, where):
    """A `MatrixConvolution`; None where the processor has no such unit, or something else must compute it.

    Parameters
    ----------
    x_shape : (n, channels, z, y, x)
    co : int
    taps, dilation : (int, int, int)
    dtype : numpy.dtype or Group
        Of the elements of x.
    epilogue : Epilogue
    where : Target
    """
    if epilogue.accumulate or not usable(dtype, where):
        return None
    return MatrixConvolution(x_shape, co, taps, dilation, dtype, epilogue, where)


class MatrixConvolution:
    """A convolution of inputs of one shape; parameters are those of `made`."""

    def __init__(self, x_shape, co, taps, dilation, dtype, epilogue, where):
        n, channels, *extent = x_shape
        self._x_shape, self._group = (n, elements(dtype, channels), *extent), dtype
        self._tiling = Tiling(self._x_shape[1], co, tuple(taps))
        self._code = kernel.address(matrix.convolution, where, dtype, self._x_shape, co, tuple(taps), tuple(dilation),
                                    epilogue)
        self._tasks = n * math.prod(arrays.valid(x_shape, taps, dilation)[:2])

    def weights(self, w):
        """What `launch` takes for weights (out, channels, kz, ky, kx), float32 or, for integers, int8."""
        packed = self._tiling.packed(fours(w, axis=1) if self._group.integers else grouped(w, self._group, axis=1))
        lines = arena.empty(packed.shape, packed.dtype)  # elsewhere each row of a tile would be in two of the cache's
        lines[...] = packed
        return lines

    def constants(self, biases, mix, mix_bias):
        """The bias that `launch` takes where channels are mixed: all numbers that are no weights of products.

        Parameters
        ----------
        biases : ndarray of float32 or None
            Of the outputs, and their factors.
        mix, mix_bias : ndarray of float32, (mixes, out, 1, 1, 1), (mixes,) or None
        """
        biases = np.zeros(0, np.float32) if biases is None else biases
        mix_bias = np.zeros(len(mix), np.float32) if mix_bias is None else mix_bias
        return np.concatenate([biases, self._tiling.mixing(mix[..., 0, 0, 0]).ravel(), mix_bias])

    def scratch_shape(self):
        """Of the memory that `launch` works in: none."""
        return (0,)

    def launch(self, y, x, weights, scratch, bias):
        """Write the convolution of x, elements (n, elements, z, y, x), into y; contiguous, as is `bias`."""
        driver.run([(self._code, y.ctypes.data, x.ctypes.data, weights.ctypes.data,
                     0 if bias is None else bias.ctypes.data, self._tasks)])
