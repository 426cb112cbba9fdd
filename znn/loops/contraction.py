"""What is summed: named dimensions, and each tensor's address as an affine function of them.

``out[f(i)] = sum over the reduction dimensions of a[g(i)] * b[h(i)]``, where f, g and h are affine.  Convolution in its
three passes, dilation, stride and matrix products differ only in the numbers::

    conv forward      y[co, z, y, x]       += x[ci, z + dz kz, y + dy ky, x + dx kx] * w[co, ci, kz, ky, kx]
    backward-data     dx[ci, z, y, x]      += g[co, z - dz kz, y - dy ky, x - dx kx] * w[co, ci, kz, ky, kx]
    backward-weights  dw[co, ci, kz,ky,kx] += g[co, z, y, x] * x[ci, z + dz kz, y + dy ky, x + dx kx]
"""
import itertools
import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Dim:
    """A dimension: its name, its extent, and whether it is summed over."""

    name: str
    extent: int
    reduction: bool = False


@dataclass(frozen=True)
class Access:
    """A tensor's address: ``start + sum_d stride[d] * index[d]``, in elements; a dimension left out has stride 0.

    `strides` lists (dimension, stride) in the order of the tensor's axes.
    """

    name: str
    strides: tuple
    start: int = 0

    def stride(self, dim):
        """Elements between neighbours along the named dimension."""
        return dict(self.strides).get(dim, 0)

    def __str__(self):
        terms = ([str(self.start)] if self.start else []) + [f"{s} {d}" for d, s in self.strides]
        return f"{self.name}[{' + '.join(terms)}]"

    def address(self, index):
        """Element of a mapping from dimension names to indices."""
        return self.start + sum(s * index[d] for d, s in self.strides)


@dataclass(frozen=True)
class Guard:
    """A condition on the points that count: the place, affine in the index, lies in ``[0, extent)``.

    One dimension of it is summed over, the others are of the output: a convolution with zeros around its operand,
    none of which is multiplied.
    """

    place: Access
    extent: int


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two tensors over affine addresses.

    Attributes
    ----------
    name : str
    dims : tuple of Dim
    out, a, b : Access
        Every output dimension has a stride in `out`, no reduction dimension has.
    bias : Access or None
        Added once to every output element by the epilogue, if a bias is asked for.
    guards : tuple of Guard
        Points that fail one of them are left out of the sum.

    Raises
    ------
    ValueError
        If `out` is addressed by a reduction dimension, an extent is not positive, a guard has not one reduction
        dimension, or two guards share a dimension.
    """

    name: str
    dims: tuple
    out: Access
    a: Access
    b: Access
    bias: Access | None = None
    guards: tuple = ()

    def __post_init__(self):
        for dim in self.dims:
            if dim.extent < 1:
                raise ValueError(f"{self.name}: dimension {dim.name} has extent {dim.extent}, expected at least 1")
            if dim.reduction and self.out.stride(dim.name):
                raise ValueError(f"{self.name}: {self.out.name} is addressed by {dim.name}, which is summed over")
        guarded = [d for g in self.guards for d, _ in g.place.strides]
        if len(guarded) != len(set(guarded)):
            raise ValueError(f"{self.name}: a dimension stands in two guards")
        for guard in self.guards:
            if sum(d in self.reductions for d, _ in guard.place.strides) != 1:
                raise ValueError(f"{self.name}: guard {guard.place} must have one dimension that is summed over")

    @cached_property
    def extents(self):
        """Extent by name."""
        return {d.name: d.extent for d in self.dims}

    @cached_property
    def reductions(self):
        """Names of the dimensions that are summed over."""
        return frozenset(d.name for d in self.dims if d.reduction)

    def inside(self, index):
        """Whether the point at `index` counts."""
        return all(0 <= g.place.address(index) < g.extent for g in self.guards)

    @cached_property
    def points(self):
        """How many products are summed."""
        free, count = dict(self.extents), 1
        for guard in self.guards:
            dims = [d for d, _ in guard.place.strides]
            ranges = (range(free.pop(d)) for d in dims)
            count *= sum(0 <= guard.place.address(dict(zip(dims, i))) < guard.extent
                         for i in itertools.product(*ranges))
        return count * math.prod(free.values())

    @property
    def flops(self):
        """Floating-point operations: a multiplication and an addition for every point."""
        return 2 * self.points

    def __str__(self):
        left, right = (" ".join(f"{d.name}:{d.extent}" for d in self.dims if d.reduction is r) for r in (False, True))
        lines = [f"{self.name}  {left} | {right}", f"{self.out} += {self.a} * {self.b}",
                 *(f"where 0 <= {str(g.place)[len(g.place.name) + 1:-1]} < {g.extent}" for g in self.guards)]
        return "\n".join(lines)


def row_major(shape):
    """Strides, in elements, of a dense array."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return tuple(strides)


def _access(name, pairs, start=0):
    """Access from (dimension, stride) pairs, adding up strides of the same dimension, leaving zeros out."""
    total = {}
    for dim, stride in pairs:
        total[dim] = total.get(dim, 0) + stride
    return Access(name, tuple((d, s) for d, s in total.items() if s), start)


SPACE, TAPS = ("z", "y", "x"), ("kz", "ky", "kx")


def conv_forward(n, ci, co, kernel, extent, dilation=(1, 1, 1), stride=(1, 1, 1), columns=None):
    """Valid 3D convolution of x (n, ci, ...) with w (co, ci, kz, ky, kx) to y (n, co, *extent).

    With `columns` (first, end), only those columns (last axis) of y, whose extent stays `extent`.
    """
    size = [s * (e - 1) + d * (k - 1) + 1 for s, e, d, k in zip(stride, extent, dilation, kernel)]
    xs, ys, ws = row_major((n, ci, *size)), row_major((n, co, *extent)), row_major((co, ci, *kernel))
    first, end = columns or (0, extent[2])
    dims = (Dim("n", n), Dim("co", co), *map(Dim, SPACE, (*extent[:2], end - first)), Dim("ci", ci, True),
            *(Dim(t, k, True) for t, k in zip(TAPS, kernel)))
    return Contraction(
        "conv_forward", dims,
        out=_access("y", [("n", ys[0]), ("co", ys[1]), *zip(SPACE, ys[2:])], first),
        a=_access("x", [("n", xs[0]), ("ci", xs[1]), *((d, s * t) for d, s, t in zip(SPACE, stride, xs[2:])),
                        *((t, d * s) for t, d, s in zip(TAPS, dilation, xs[2:]))], stride[2] * first),
        b=_access("w", zip(("co", "ci", *TAPS), ws)),
        bias=_access("bias", [("co", 1)]))


def conv_backward_data(n, ci, co, kernel, extent, dilation=(1, 1, 1), g_strides=None, g_start=None, columns=None,
                       taps=None):
    """Gradient for x (n, ci, *extent) of `conv_forward` with stride 1.

    Where a tap misses g along z or y the point is left out; along x, g has dilation * (kernel - 1) zeros on both sides
    of its rows in memory, unless its strides and the element of its first voxel are given.
    With `columns` (first, end) only those columns of x, with `taps` (first, end) only those taps of the last axis.
    """
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
    held = [e - r for e, r in zip(extent, reach)]
    gs = g_strides or row_major((n, co, *held[:2], held[2] + 2 * reach[2]))
    xs, ws = row_major((n, ci, *extent)), row_major((co, ci, *kernel))
    first, end = columns or (0, extent[2])
    tap, last_tap = taps or (0, kernel[2])
    start = (reach[2] if g_start is None else g_start) + first - dilation[2] * tap
    dims = (Dim("n", n), Dim("ci", ci), *map(Dim, SPACE, (*extent[:2], end - first)), Dim("co", co, True),
            *(Dim(t, k, True) for t, k in zip(TAPS, (*kernel[:2], last_tap - tap))))
    return Contraction(
        "conv_backward_data", dims,
        out=_access("dx", [("n", xs[0]), ("ci", xs[1]), *zip(SPACE, xs[2:])], first),
        a=_access("g", [("n", gs[0]), ("co", gs[1]), *zip(SPACE, gs[2:]),
                        *((t, -d * s) for t, d, s in zip(TAPS, dilation, gs[2:]))], start),
        b=_access("w", zip(("co", "ci", *TAPS), ws), tap),
        guards=tuple(Guard(_access("g", [(d, 1), (t, -s)]), e)
                     for d, t, s, e, k in zip(SPACE[:2], TAPS, dilation, held, kernel) if k > 1))


def conv_backward_weights(n, ci, co, kernel, extent, dilation=(1, 1, 1), g_strides=None, g_start=0):
    """Gradient for w of `conv_forward` with stride 1; `extent` is y's and g's.

    g is dense unless its strides and the element of its first voxel are given.
    """
    size = [e + d * (k - 1) for e, d, k in zip(extent, dilation, kernel)]
    xs, gs, ws = row_major((n, ci, *size)), g_strides or row_major((n, co, *extent)), row_major((co, ci, *kernel))
    dims = (Dim("co", co), Dim("ci", ci), *map(Dim, TAPS, kernel), Dim("n", n, True),
            *(Dim(d, e, True) for d, e in zip(SPACE, extent)))
    return Contraction(
        "conv_backward_weights", dims,
        out=_access("dw", zip(("co", "ci", *TAPS), ws)),
        a=_access("x", [("ci", xs[1]), *((t, d * s) for t, d, s in zip(TAPS, dilation, xs[2:])), ("n", xs[0]),
                        *zip(SPACE, xs[2:])]),
        b=_access("g", [("n", gs[0]), ("co", gs[1]), *zip(SPACE, gs[2:])], g_start))


def matmul(m, n, k):
    """C (m, n) = A (m, k) @ B (k, n), all row-major."""
    return Contraction("matmul", (Dim("m", m), Dim("n", n), Dim("k", k, True)),
                       out=_access("C", [("m", n), ("n", 1)]), a=_access("A", [("m", k), ("k", 1)]),
                       b=_access("B", [("k", n), ("n", 1)]))


def points_forward(points, ci, co, taps, columns, dilation, v_pitch, m_pitch):
    """Convolutions along x, one for each point: V (points, ci, v_pitch) with U (points, co, ci, taps) to M (points, co,
    m_pitch), of which the `columns` (first, end) are computed."""
    first, end = columns
    return Contraction(
        "points_forward",
        (Dim("p", points), Dim("co", co), Dim("x", end - first), Dim("ci", ci, True), Dim("kx", taps, True)),
        out=_access("M", [("p", co * m_pitch), ("co", m_pitch), ("x", 1)], first),
        a=_access("V", [("p", ci * v_pitch), ("ci", v_pitch), ("x", 1), ("kx", dilation)], first),
        b=_access("U", zip(("p", "co", "ci", "kx"), row_major((points, co, ci, taps)))))


def points_weights(ci, co, taps, rows, columns, dilation, v_pitch, d_pitch, held):
    """Gradient for the weights of one point of `points_forward`: W (ci, taps, co) from V (ci, held, v_pitch) and D (co,
    held, d_pitch), of which so many `rows` and `columns` count."""
    return Contraction(
        "points_weights",
        (Dim("co", co), Dim("ci", ci), Dim("kx", taps), Dim("y", rows, True), Dim("x", columns, True)),
        out=_access("W", [("ci", taps * co), ("kx", co), ("co", 1)]),
        a=_access("V", [("ci", held * v_pitch), ("y", v_pitch), ("x", 1), ("kx", dilation)]),
        b=_access("D", [("co", held * d_pitch), ("y", d_pitch), ("x", 1)]))
