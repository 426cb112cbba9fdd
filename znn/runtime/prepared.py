"""A forward convolution whose weights stay the same: they are laid out once, and a run allocates nothing of size."""
import numpy as np

from znn.codegen.plan import Epilogue
from znn.runtime import conv, driver


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

    Attributes
    ----------
    scratch_shape : tuple of int
        Of the memory that a run on the threads at hand works in; elements are those of the weights.
    """

    def __init__(self, x_shape, w, bias=None, dilation=(1, 1, 1), activation=None, onto=False):
        epilogue = Epilogue(onto, bias is not None, activation)
        self._bias = None if bias is None else bias.copy()
        self._tiles, self._kernels = conv.forward_way(tuple(x_shape), w.shape, dilation, epilogue, w.dtype)
        w = np.ascontiguousarray(w)
        self._weights = self._tiles.weights(w) if self._tiles else [k.pack(w) for k in self._kernels]
        self.scratch_shape = self._tiles.scratch_shape() if self._tiles else (0,)

    def run(self, y, x, scratch):
        """Write the convolution of x into y (n, out, z, y, x).

        Parameters
        ----------
        y, x : ndarray
            Contiguous, of the types of the weights.
        scratch : ndarray
            Of `scratch_shape`, contiguous; no other run may work in it at the same time.
        """
        if self._tiles:
            self._tiles.launch(y, x, self._weights, scratch, self._bias)
        else:
            driver.run([k.piece(y, x, w, self._bias) for k, w in zip(self._kernels, self._weights)])
