"""The dense networks against the strided networks of the tables, evaluated at one voxel after another.

The reference below is written from the tables alone: torch's convolution without dilation, torch's pooling with
stride, one patch of the size of the field of view a voxel.  It knows nothing of maximum filters or dilation.
"""
import importlib

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import models
from models.table import Conv, Pool
from models.vd2d3d import MAP_STREAM

ACTIVATE = {None: lambda x: x, "relu": torch.relu, "tanh": lambda x: 1.7159 * torch.tanh(0.6666 * x)}


def strided(table, state, x):
    for row in table:
        if isinstance(row, Conv):
            x = ACTIVATE[row.activation](F.conv3d(x, state[f"{row.name}.weight"], state.get(f"{row.name}.bias")))
        elif isinstance(row, Pool):
            x = F.max_pool3d(x, row.window, row.stride)
    return x


def strided_recursive(table, state, x):
    """The sum of both streams enters conv1c's activation."""
    upto = [row.name for row in table].index("conv1c") + 1
    linear = Conv("conv1c", (1, 2, 2), 24)
    joined = strided((*table[:upto - 1], linear), state, x[:, :1]) + strided(MAP_STREAM, state, x[:, 1:])
    return strided(table[upto:], state, ACTIVATE[table[upto - 1].activation](joined))


def with_biases(net):
    """Biases away from zero, so that a missing one would show."""
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.2, 0.2)
    return net.eval()


CASES = {
    "N4 tanh": (models.N4, {"activation": "tanh"}, ("tanh",), (2, 3, 2)),
    "N4": (models.N4, {}, ("relu",), (1, 2, 3)),
    "VD2D": (models.VD2D, {}, ("relu", 0.5), (2, 2, 3)),
    "VD2D tanh": (models.VD2D, {"activation": "tanh"}, ("tanh", 0.5), (1, 3, 2)),
    "VD2D3D": (models.VD2D3D, {}, ("relu", 0.5), (2, 3, 2)),
    "VD2D3D tanh": (models.VD2D3D, {"activation": "tanh"}, ("tanh", 0.5), (1, 2, 2)),
    "VD2D3D recursive": (models.VD2D3D, {"recursive": True}, ("relu", 0.5), (2, 2, 3)),
    "VD2D3D recursive tanh": (models.VD2D3D, {"recursive": True, "activation": "tanh"}, ("tanh", 0.5), (1, 3, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_dense_equals_strided_at_every_voxel(case):
    network, options, choice, extent = CASES[case]
    torch.manual_seed(3)
    net = with_biases(network(**options))
    table = importlib.import_module(network.__module__).table(*choice)
    reference = strided_recursive if options.get("recursive") else strided
    x = torch.randn(1, net.in_channels, *(n + f - 1 for n, f in zip(extent, net.field_of_view)))
    with torch.no_grad():
        dense = net(x)
        assert tuple(dense.shape[2:]) == extent
        for at in np.ndindex(*extent):
            window = tuple(slice(a, a + f) for a, f in zip(at, net.field_of_view))
            single = reference(table, net.state_dict(), x[(..., *window)])
            assert single.shape[2:] == (1, 1, 1)
            torch.testing.assert_close(dense[(..., *at)], single[..., 0, 0, 0], rtol=1e-4, atol=1e-4)


def test_dropout_acts_while_training_only():
    torch.manual_seed(0)
    net = models.VD2D(dropout=0.5)
    x = torch.randn(1, 1, 1, 109, 109)
    with torch.no_grad():
        assert not torch.equal(net(x), net(x))
        net.eval()
        assert torch.equal(net(x), net(x))
