"""A network written as its table: one row a layer, dilation following from the strides of the poolings above.

The published networks are tables of convolutions and strided poolings. `layers` turns such a table into its dense
form: a pooling of stride s becomes a maximum filter at every voxel, and the taps of everything after it move s times
further apart, so that one pass gives what the strided network gives when it is evaluated at every voxel in turn::

    table                 strided            dense
    Conv 1,3,3            dilation 1         dilation 1
    Pool 1,2,2            stride 2           max filter, taps 1 apart
    Conv 1,3,3            dilation 1         taps 2 apart
    Pool 1,2,2            stride 2           max filter, taps 2 apart
    Conv 1,3,3            dilation 1         taps 4 apart
"""
from dataclasses import dataclass

from torch import nn

from models.errors import choose
from znn.nn import Conv3d, Dropout, MaxFilter3d, ReLU, Tanh, field_of_view, initialise

ACTIVATIONS = {"relu": ReLU, "tanh": Tanh}
UNIFORM = ("uniform", 0.05)


@dataclass(frozen=True)
class Conv:
    """Row: valid convolution, `kernel` (z, y, x), to `maps` channels, then `activation` ("relu", "tanh" or none).

    `init` is a kind of `znn.nn.initialise`, or the kind with its scale.
    """

    name: str
    kernel: tuple
    maps: int
    activation: str | None = None
    init: str | tuple = "msra"
    bias: bool = True


@dataclass(frozen=True)
class Pool:
    """Row: max pooling, `window` and `stride` (z, y, x)."""

    name: str
    window: tuple
    stride: tuple


@dataclass(frozen=True)
class Drop:
    """Row: dropout of single voxels with probability `p` while training."""

    name: str
    p: float


def layers(table, in_channels):
    """The dense layers of a table, in order.

    Parameters
    ----------
    table : sequence of Conv, Pool, Drop
    in_channels : int

    Returns
    -------
    dict of str to torch.nn.Module
        A row's layer under the row's name, its activation inside.
    """
    built, channels, dilation = {}, in_channels, (1, 1, 1)
    for row in table:
        if isinstance(row, Conv):
            f = choose("activation", row.activation, ACTIVATIONS)() if row.activation else None
            conv = built[row.name] = Conv3d(channels, row.maps, row.kernel, dilation, row.bias, f)
            _initialise(conv, row.init)
            channels = row.maps
        elif isinstance(row, Pool):
            built[row.name] = MaxFilter3d(row.window, dilation)
            dilation = tuple(d * s for d, s in zip(dilation, row.stride))
        else:
            built[row.name] = Dropout(row.p)
    return built


def _initialise(conv, init):
    kind, scale = (init, None) if isinstance(init, str) else init
    initialise(conv, kind, scale)


class DenseNet(nn.Module):
    """The dense network of a table, with an optional second stream for a second input channel.

    The side stream reads channel 1 and its last convolution is added to the convolution `joins` of the main stream,
    before the activation that the two share::

        channel 0 -> conv1a -> conv1b -> conv1c ---+--> activation -> pool1 -> ...
        channel 1 -> side stream ------------------+

    Parameters
    ----------
    table : sequence of rows
        The main stream.
    in_channels : int
        Channels that the main stream reads.
    side : sequence of rows
        The side stream, empty for none.
    joins : str
        Name of the convolution of the main stream that the side stream is added to.
    init : str, optional
        One kind of `znn.nn.initialise` for every convolution, in place of the table's own.

    Attributes
    ----------
    in_channels : int
        Channels of the input (N, in_channels, Z, Y, X); the output is (N, maps, Z - fz + 1, Y - fy + 1, X - fx + 1).
    field_of_view : tuple of int
        (fz, fy, fx), input voxels that one output voxel sees.
    """

    def __init__(self, table, in_channels=1, side=(), joins=None, init=None):
        super().__init__()
        main, beside = layers(table, in_channels), layers(side, 1)
        for name, layer in (main | beside).items():
            self.add_module(name, layer)
            if init is not None and isinstance(layer, Conv3d):
                initialise(layer, init)
        self._main, self._side, self._joins = tuple(main), tuple(beside), joins
        self.in_channels = in_channels + bool(side)
        self.field_of_view = field_of_view(self, self.in_channels)

    def forward(self, x):
        """Logits (N, maps, Z', Y', X') of an input (N, in_channels, Z, Y, X)."""
        if not self._side:
            return self._walk(self._main, x)
        at = self._main.index(self._joins)
        main, beside = self._walk(self._main[:at], x[:, :-1]), self._walk(self._side[:-1], x[:, -1:])
        layer, joining = self.get_submodule(self._joins), self.get_submodule(self._side[-1])
        return self._walk(self._main[at + 1:], layer(main, (joining, beside)))

    def _walk(self, names, x):
        for name in names:
            x = self.get_submodule(name)(x)
        return x
