"""What is summed: named dimensions, and each tensor's address as an affine function of them.

``out[f(i)] = sum over the reduction dimensions of a[g(i)] * b[h(i)]``, where f, g and h are affine.  Convolution in its
three passes, dilation, stride and matrix products differ only in the numbers (`convolution`).
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
        If an extent is not positive, a name stands for two dimensions or an address has one that there is not, `out` is
        addressed by a reduction dimension or not by one of the output, a guard has not one reduction dimension, or two
        guards share a dimension.
    """

    name: str
    dims: tuple
    out: Access
    a: Access
    b: Access
    bias: Access | None = None
    guards: tuple = ()

    def __post_init__(self):
        if len(self.extents) != len(self.dims):
            raise ValueError(f"{self.name}: expected a name for each dimension, found "
                             f"{', '.join(d.name for d in self.dims)}")
        for dim in self.dims:
            if dim.extent < 1:
                raise ValueError(f"{self.name}: dimension {dim.name} has extent {dim.extent}, expected at least 1")
            if dim.reduction and self.out.stride(dim.name):
                raise ValueError(f"{self.name}: {self.out.name} is addressed by {dim.name}, which is summed over")
            if not dim.reduction and not self.out.stride(dim.name):
                raise ValueError(f"{self.name}: {self.out.name} is not addressed by {dim.name}, which is not summed "
                                 "over")
        for access in (self.out, self.a, self.b, *([self.bias] if self.bias else []), *(g.place for g in self.guards)):
            for dim, _ in access.strides:
                if dim not in self.extents:
                    raise ValueError(f"{self.name}: {access} is addressed by {dim}, which is none of its dimensions "
                                     f"{', '.join(self.extents)}")
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
