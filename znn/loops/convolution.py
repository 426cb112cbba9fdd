"""The contractions that networks are made of, with what they ask of their numbers::

    conv forward      y[co, z, y, x]       += x[ci, z + dz kz, y + dy ky, x + dx kx] * w[co, ci, kz, ky, kx]
    backward-data     dx[ci, z, y, x]      += g[co, z - dz kz, y - dy ky, x - dx kx] * w[co, ci, kz, ky, kx]
    backward-weights  dw[co, ci, kz,ky,kx] += g[co, z, y, x] * x[ci, z + dz kz, y + dy ky, x + dx kx]

A kernel trusts a contraction's addresses, so every constructor raises ValueError for numbers that mean no such thing or
lead out of the tensors.
"""
import operator
from collections.abc import Sequence

from znn.loops.contraction import Access, Contraction, Dim, Guard, row_major

SPACE, TAPS = ("z", "y", "x"), ("kz", "ky", "kx")


def conv_forward(n, ci, co, kernel, extent, dilation=(1, 1, 1), stride=(1, 1, 1), columns=None, together=1):
    """Valid 3D convolution of x (n, ci, ...) with w (co, ci, kz, ky, kx) to y (n, co, *extent).

    With `columns` (first, end), only those columns (last axis) of y, whose extent stays `extent`.
    With `together`, so many channels of a voxel lie beside each other: y is (n, co / together, *extent, together).
    """
    _positive("conv_forward", n=n, ci=ci, co=co, together=together)
    positive_zyx("conv_forward", kernel=kernel, extent=extent, dilation=dilation, stride=stride)
    size = [s * (e - 1) + d * (k - 1) + 1 for s, e, d, k in zip(stride, extent, dilation, kernel)]
    if co % together:
        raise ValueError(f"conv_forward: co must be a multiple of together, {together}, found {co}: add channels whose "
                         "weights are zero")
    xs, ws, groups = row_major((n, ci, *size)), row_major((co // together, together, ci, *kernel)), co // together
    ys = row_major((n, groups, *extent, together))
    first, end = _part("conv_forward", "columns", columns, extent[2])
    inside = (Dim("c", together),) if together > 1 else ()
    dims = (Dim("n", n), Dim("co", groups), *inside, *map(Dim, SPACE, (*extent[:2], end - first)), Dim("ci", ci, True),
            *(Dim(t, k, True) for t, k in zip(TAPS, kernel)))
    both = [("co", together), ("c", 1)] if inside else [("co", 1)]  # strides of a channel
    return Contraction(
        "conv_forward", dims,
        out=_access("y", [("n", ys[0]), ("co", ys[1]), *zip(SPACE, ys[2:]), *both[1:]], together * first),
        a=_access("x", [("n", xs[0]), ("ci", xs[1]), *((d, s * t) for d, s, t in zip(SPACE, stride, xs[2:])),
                        *((t, d * s) for t, d, s in zip(TAPS, dilation, xs[2:]))], stride[2] * first),
        b=_access("w", [("co", ws[0]), *((d, ws[1]) for d, _ in both[1:]), *zip(("ci", *TAPS), ws[2:])]),
        bias=_access("bias", both))


def conv_backward_data(n, ci, co, kernel, extent, dilation=(1, 1, 1), g_strides=None, g_start=None, columns=None,
                       taps=None):
    """Gradient for x (n, ci, *extent) of `conv_forward` with stride 1.

    Where a tap misses g along z or y the point is left out; along x, g has dilation * (kernel - 1) zeros on both sides
    of its rows in memory, unless its strides and the element of its first voxel are given.
    With `columns` (first, end) only those columns of x, with `taps` (first, end) only those taps of the last axis.
    """
    name = "conv_backward_data"
    _positive(name, n=n, ci=ci, co=co)
    positive_zyx(name, kernel=kernel, extent=extent, dilation=dilation)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
    held = [e - r for e, r in zip(extent, reach)]
    if min(held) < 1:
        raise ValueError(f"{name}: extent (z, y, x) must be more than the kernel reaches, {tuple(reach)}, found "
                         f"{tuple(extent)}: it is that of x")
    gs = row_major((n, co, *held[:2], held[2] + 2 * reach[2])) if g_strides is None else _strides(name, g_strides)
    g_start = reach[2] if g_start is None else g_start
    xs, ws = row_major((n, ci, *extent)), row_major((co, ci, *kernel))
    first, end = _part(name, "columns", columns, extent[2])
    tap, last_tap = _part(name, "taps", taps, kernel[2])
    _at_least(name, max(0, dilation[2] * (last_tap - 1) - first) * gs[4], "the zeros before its first row are read",
              g_start=g_start)
    dims = (Dim("n", n), Dim("ci", ci), *map(Dim, SPACE, (*extent[:2], end - first)), Dim("co", co, True),
            *(Dim(t, k, True) for t, k in zip(TAPS, (*kernel[:2], last_tap - tap))))
    return Contraction(
        name, dims,
        out=_access("dx", [("n", xs[0]), ("ci", xs[1]), *zip(SPACE, xs[2:])], first),
        a=_access("g", [("n", gs[0]), ("co", gs[1]), *zip(SPACE, gs[2:]),
                        *((t, -d * s) for t, d, s in zip(TAPS, dilation, gs[2:]))],
                  g_start + (first - dilation[2] * tap) * gs[4]),
        b=_access("w", zip(("co", "ci", *TAPS), ws), tap),
        guards=tuple(Guard(_access("g", [(d, 1), (t, -s)]), e)
                     for d, t, s, e, k in zip(SPACE[:2], TAPS, dilation, held, kernel) if k > 1))


def conv_backward_weights(n, ci, co, kernel, extent, dilation=(1, 1, 1), g_strides=None, g_start=0):
    """Gradient for w of `conv_forward` with stride 1; `extent` is y's and g's.

    g is dense unless its strides and the element of its first voxel are given.
    """
    name = "conv_backward_weights"
    _positive(name, n=n, ci=ci, co=co)
    positive_zyx(name, kernel=kernel, extent=extent, dilation=dilation)
    _at_least(name, 0, "it is an element of an array", g_start=g_start)
    size = [e + d * (k - 1) for e, d, k in zip(extent, dilation, kernel)]
    xs, ws = row_major((n, ci, *size)), row_major((co, ci, *kernel))
    gs = row_major((n, co, *extent)) if g_strides is None else _strides(name, g_strides)
    dims = (Dim("co", co), Dim("ci", ci), *map(Dim, TAPS, kernel), Dim("n", n, True),
            *(Dim(d, e, True) for d, e in zip(SPACE, extent)))
    return Contraction(
        name, dims,
        out=_access("dw", zip(("co", "ci", *TAPS), ws)),
        a=_access("x", [("ci", xs[1]), *((t, d * s) for t, d, s in zip(TAPS, dilation, xs[2:])), ("n", xs[0]),
                        *zip(SPACE, xs[2:])]),
        b=_access("g", [("n", gs[0]), ("co", gs[1]), *zip(SPACE, gs[2:])], g_start))


def matmul(m, n, k):
    """C (m, n) = A (m, k) @ B (k, n), all row-major."""
    _positive("matmul", m=m, n=n, k=k)
    return Contraction("matmul", (Dim("m", m), Dim("n", n), Dim("k", k, True)),
                       out=_access("C", [("m", n), ("n", 1)]), a=_access("A", [("m", k), ("k", 1)]),
                       b=_access("B", [("k", n), ("n", 1)]))


def points_forward(points, ci, co, taps, columns, dilation, v_pitch, m_pitch):
    """Convolutions along x, one for each point: V (points, ci, v_pitch) with U (points, co, ci, taps) to M (points, co,
    m_pitch), of which the `columns` (first, end) are computed."""
    _positive("points_forward", points=points, ci=ci, co=co, taps=taps, dilation=dilation)
    first, end = _part("points_forward", "columns", columns, m_pitch)
    _at_least("points_forward", end + dilation * (taps - 1), "the last column's taps read so far", v_pitch=v_pitch)
    return Contraction(
        "points_forward",
        (Dim("p", points), Dim("co", co), Dim("x", end - first), Dim("ci", ci, True), Dim("kx", taps, True)),
        out=_access("M", [("p", co * m_pitch), ("co", m_pitch), ("x", 1)], first),
        a=_access("V", [("p", ci * v_pitch), ("ci", v_pitch), ("x", 1), ("kx", dilation)], first),
        b=_access("U", zip(("p", "co", "ci", "kx"), row_major((points, co, ci, taps)))))


def points_weights(ci, co, taps, rows, columns, dilation, v_pitch, d_pitch, held):
    """Gradient for the weights of one point of `points_forward`: W (ci, taps, co) from V (ci, held, v_pitch) and D (co,
    held, d_pitch), of which so many `rows` and `columns` count."""
    name = "points_weights"
    _positive(name, ci=ci, co=co, taps=taps, rows=rows, columns=columns, dilation=dilation)
    _at_least(name, rows, "so many rows count", held=held)
    _at_least(name, columns, "so many columns count", d_pitch=d_pitch)
    _at_least(name, columns + dilation * (taps - 1), "the last column's taps read so far", v_pitch=v_pitch)
    return Contraction(
        name,
        (Dim("co", co), Dim("ci", ci), Dim("kx", taps), Dim("y", rows, True), Dim("x", columns, True)),
        out=_access("W", [("ci", taps * co), ("kx", co), ("co", 1)]),
        a=_access("V", [("ci", held * v_pitch), ("y", v_pitch), ("x", 1), ("kx", dilation)]),
        b=_access("D", [("co", held * d_pitch), ("y", d_pitch), ("x", 1)]))


def _access(name, pairs, start=0):
    """Access from (dimension, stride) pairs, adding up strides of the same dimension, leaving zeros out."""
    total = {}
    for dim, stride in pairs:
        total[dim] = total.get(dim, 0) + stride
    return Access(name, tuple((d, s) for d, s in total.items() if s), start)


def _whole(value):
    """Whether a value is a whole number."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _numbers(value, count):
    """Whether a value is a sequence of so many whole numbers."""
    return isinstance(value, Sequence) and len(value) == count and all(map(_whole, value))


def _at_least(name, least, why, **numbers):
    """Raise ValueError unless each number is whole and not less than `least`."""
    for what, value in numbers.items():
        if not _whole(value) or value < least:
            raise ValueError(f"{name}: {what} must be a whole number of at least {least}, since {why}, found {value!r}")


def _positive(name, **numbers):
    """Raise ValueError unless each is a positive whole number."""
    for what, value in numbers.items():
        if not _whole(value) or value < 1:
            raise ValueError(f"{name}: {what} must be a positive whole number, found {value!r}")


def positive_zyx(name, **triples):
    """Raise ValueError unless each is three positive whole numbers."""
    for what, value in triples.items():
        if not _numbers(value, 3) or min(value) < 1:
            raise ValueError(f"{name}: {what} must be a tuple of three positive whole numbers (z, y, x), "
                             f"found {value!r}")


def _part(name, what, part, whole):
    """(first, end) of a part of so many, all of them unless given; raise ValueError where it is none."""
    if part is None:
        return 0, whole
    if not _numbers(part, 2) or not 0 <= part[0] < part[1] <= whole:
        raise ValueError(f"{name}: {what} must be a tuple of whole numbers (first, end) with 0 <= first < end <= "
                         f"{whole}, found {part!r}")
    return part


def _strides(name, strides):
    """The strides of a gradient; raise ValueError where they are none."""
    if not _numbers(strides, 5) or min(strides) < 0:
        raise ValueError(f"{name}: g_strides must be a tuple of five whole numbers (n, co, z, y, x), none "
                         f"negative, found {strides!r}")
    return strides
