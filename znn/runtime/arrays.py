"""What is asked of arrays before kernels get their addresses: machine code trusts them, and writes where they say."""
from numbers import Real

import numpy as np

from znn.loops.convolution import positive_zyx

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def check(what, name, array, shape=None, dtype=None, written=False):
    """Raise ValueError unless a kernel can work on an array.

    Parameters
    ----------
    what, name : str
        Who asks, and for which argument.
    array : ndarray
        C-contiguous and aligned.
    shape : tuple of int, optional
        Any unless given.
    dtype : numpy.dtype, optional
        float32 or float64 unless given.
    written : bool
        Whether the kernel writes to it.
    """
    if isinstance(array, np.ndarray) and (shape is None or array.shape == shape):
        flags, found = array.flags, array.dtype
        if (flags.c_contiguous and flags.aligned and (found in FLOATS if dtype is None else found == dtype)
                and not (written and not flags.writeable)):
            return
    raise ValueError(_complaint(what, name, array, shape, dtype, written))


def _complaint(what, name, array, shape, dtype, written):
    kinds = FLOATS if dtype is None else (dtype,)
    expected = f"{what} expects {name} as an array {f'{shape} ' if shape else ''}of {' or '.join(map(str, kinds))}"
    if not isinstance(array, np.ndarray):
        return f"{expected}, found {type(array).__name__}: convert it, as by np.asarray({name}, np.{kinds[0]})"
    found = f"{tuple(array.shape)} of {array.dtype}"
    if array.dtype not in kinds:
        return f"{expected}, found {found}: convert it, as by {name}.astype(np.{kinds[0]})"
    if shape is not None and array.shape != shape:
        return f"{expected}, found {found}: its shape follows from those of the arguments before it"
    if written and not array.flags.writeable:
        return f"{expected} that may be written to, found one that is read-only: give a copy of it"
    return f"{expected}, contiguous and aligned, found one that is not: copy it, as by np.require({name}, None, 'CA')"


def check_volumes(what, name, shape):
    """Raise ValueError unless a shape has five axes, none of them empty."""
    if len(shape) != 5 or min(shape) < 1:
        raise ValueError(f"{what} expects {name} as (n, channels, z, y, x), none of them empty, found "
                         f"{tuple(shape)}: axes that are missing have extent 1, as by {name}[None]")


def inner(what, shape, window, dilation):
    """(z, y, x) of where all taps of a dilated window meet an array of `shape`; raise ValueError where none do."""
    check_volumes(what, "x", shape)
    positive_zyx(what, window=window, dilation=dilation)
    extent = valid(shape, window, dilation)
    if min(extent) < 1:
        need = tuple(d * (k - 1) + 1 for k, d in zip(window, dilation))
        raise ValueError(f"{what} needs at least {need} voxels (z, y, x) for a window {tuple(window)} with dilation "
                         f"{tuple(dilation)}, found {tuple(shape[2:])}: give it a larger input")
    return extent


def valid(shape, window, dilation):
    """`inner` of what is known to be right."""
    return tuple(s - d * (k - 1) for s, d, k in zip(shape[2:], dilation, window))


def convolved(what, x_shape, w_shape, dilation):
    """Shape of a convolution of x (n, in, z, y, x) with w (out, in, kz, ky, kx); raise ValueError where none is."""
    if len(w_shape) != 5 or min(w_shape) < 1:
        raise ValueError(f"{what} expects w as (out, in, kz, ky, kx), none of them empty, found {tuple(w_shape)}: a 2D "
                         "kernel has kz = 1, as by w[:, :, None]")
    extent = inner(what, x_shape, w_shape[2:], dilation)
    if x_shape[1] != w_shape[1]:
        raise ValueError(f"{what} expects as many channels of x as w has, {w_shape[1]}, found {x_shape[1]}: x is "
                         f"{tuple(x_shape)} and w {tuple(w_shape)}")
    return x_shape[0], w_shape[0], *extent


def check_prepared(what, x_shape, w_shape, g, left, extent, dilation, dtype):
    """Raise ValueError unless g is what `conv.prepared` makes of a gradient of shape `extent`, one of x and w."""
    shape = convolved(what, x_shape, w_shape, dilation)
    if tuple(extent) != shape:
        raise ValueError(f"{what} of x {tuple(x_shape)} with w {tuple(w_shape)} expects a gradient {shape}, found "
                         f"{tuple(extent)}: it is another's")
    check(what, "g", g, dtype=dtype)
    reach = dilation[2] * (w_shape[4] - 1)
    need = *shape[:4], left + shape[4] + reach
    if left < reach or len(g.shape) != 5 or g.shape[:3] != shape[:3] or g.shape[3] < need[3] or g.shape[4] < need[4]:
        raise ValueError(f"{what} expects g with at least {need} voxels, of which {reach} zeros before and after "
                         f"each row, found {g.shape} and rows that begin at {left}: make it by prepared(grad, ..., "
                         f"reach={reach})")


def check_activation(kind):
    """Raise ValueError for what is no activation of a kernel."""
    pair = isinstance(kind, tuple) and len(kind) == 2 and all(isinstance(v, Real) for v in kind)
    if not (pair or kind is None or kind == "relu"):
        raise ValueError(f'activation must be None, "relu", or a tuple of two numbers (a, b) for a tanh(b s), '
                         f"found {kind!r}")
