"""Types of tensors: an element type and a shape, whose extents may be known only up to a constant.

All layers are dense and valid, so an extent changes by constants alone: what is supported is ``n + c``, a symbol plus
an integer. Printed, a volume of 24 maps behind a 3x3 convolution is ``f32[24, z, y - 2, x - 2]``.
"""
import math
import re
from dataclasses import dataclass

from znn.graph.errors import GraphError, SyntaxMistake

ITEMSIZE = {"f64": 8, "f32": 4, "bf16": 2, "u8": 1, "i8": 1}  # bytes of a number
TOGETHER = {"bf16": 2, "u8": 4}  # channels of a voxel that lie beside each other in memory; 1 where nothing is said
SUMS = {"bf16": "f32", "u8": "f32"}  # what sums of products become, and biases are; the type itself if nothing is said
WEIGHTS = {"u8": "i8"}  # of weights that such numbers, which stand for others, are multiplied by; the type itself else
_EXTENT = re.compile(r"([A-Za-z_]\w*)(?: ([+-]) (\d+))?")
_TYPE = re.compile(r"(\w+)\[(.*)\]")


@dataclass(frozen=True)
class Extent:
    """`symbol` + `offset` voxels, the symbol standing for an extent of the function's input."""

    symbol: str
    offset: int = 0

    def __add__(self, voxels):
        return Extent(self.symbol, self.offset + voxels)

    def __sub__(self, voxels):
        return self + -voxels

    def __str__(self):
        sign = "-" if self.offset < 0 else "+"
        return f"{self.symbol} {sign} {abs(self.offset)}" if self.offset else self.symbol


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor.

    Attributes
    ----------
    dtype : str
        A key of `ITEMSIZE`.
    shape : tuple of (int or Extent)
        (channels, z, y, x) of a volume; the shape of a layer's weights, (out, in, kz, ky, kx), or of its bias, (out,).
        There is no axis of volumes: a batch is computed volume by volume.
    """

    dtype: str
    shape: tuple

    def __str__(self):
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def nbytes(self):
        """Bytes of a tensor whose extents are all known; channels that fill the last element up count."""
        channels, together = self.shape[0], TOGETHER.get(self.dtype, 1)
        return -(-channels // together) * together * math.prod(self.shape[1:]) * ITEMSIZE[self.dtype]

    @property
    def sums(self):
        """Name of the element type of sums of products of these elements."""
        return SUMS.get(self.dtype, self.dtype)

    def at(self, sizes):
        """The type where symbols have the values of the dict `sizes`; others stay."""
        return TensorType(self.dtype, tuple(known(extent, sizes) for extent in self.shape))

    def like(self, *shape):
        """The type of another shape with these elements."""
        return TensorType(self.dtype, shape)


def known(extent, sizes):
    """An extent where symbols have the values of the dict `sizes`."""
    if isinstance(extent, Extent) and extent.symbol in sizes:
        return sizes[extent.symbol] + extent.offset
    return extent


def dtype_name(dtype):
    """How types name the elements of an array.

    Raises
    ------
    GraphError
        If they have no name.
    """
    name = f"{dtype.kind}{8 * dtype.itemsize}"
    if name not in ITEMSIZE:
        raise GraphError(f"expected numbers of a type that is one of {', '.join(ITEMSIZE)}, found {dtype}: convert "
                         "them, as by net.float()")
    return name


def volume(dtype, channels, symbols="zyx"):
    """The type of an input whose three extents are open."""
    return TensorType(dtype, (channels, *map(Extent, symbols)))


def parse_type(text):
    """The type that prints as `text`.

    Raises
    ------
    SyntaxMistake
    """
    match = _TYPE.fullmatch(text.strip())
    if match is None or match[1] not in ITEMSIZE:
        raise SyntaxMistake(f"expected a type such as f32[24, z, y - 2, x - 2], of {', '.join(ITEMSIZE)}, found "
                            f"{text!r}: correct it")
    return TensorType(match[1], tuple(_parse_extent(part.strip()) for part in match[2].split(",")))


def _parse_extent(text):
    if text.isdecimal():
        return int(text)
    match = _EXTENT.fullmatch(text)
    if match is None:
        raise SyntaxMistake(f"expected an extent such as 24, y or y - 2, found {text!r}")
    return Extent(match[1], int(match[2] + match[3]) if match[2] else 0)


def least_extents(types):
    """The least value of each symbol for which every extent of the types is at least one voxel; dict."""
    found = {}
    for extent in (e for t in types for e in t.shape if isinstance(e, Extent)):
        found[extent.symbol] = max(found.get(extent.symbol, 1), 1 - extent.offset)
    return found


def unify(declared, found, what):
    """Values of the symbols of a `declared` shape for which it is that of an array, `found`.

    Raises
    ------
    GraphError
        If there are none.
    """
    sizes = {}
    for extent, n in zip(declared.shape, found):
        if isinstance(extent, Extent):
            sizes.setdefault(extent.symbol, n - extent.offset)
    if declared.at(sizes).shape != tuple(found):
        raise GraphError(f"{what}: expected {declared}, found an array of shape {tuple(found)}: give one that has this "
                         "shape")
    return sizes
