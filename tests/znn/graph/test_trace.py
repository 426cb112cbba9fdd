"""Networks as functions: the shipped ones, those that users write, and what cannot be one."""
import operator

import numpy as np
import pytest
import torch
from torch import nn as tnn

import models
from znn import nn
from znn.graph.errors import GraphError, IllTyped, UnsupportedLayer
from znn.graph.interpreter import interpret
from znn.graph.text import parse
from znn.graph.trace import trace


def agrees(net, channels, extent, given=None):
    """The function of a network, once it is known to mean what the network computes in double precision."""
    torch.manual_seed(0)
    net = net.double()
    function = trace(net, given)
    assert parse(str(function)) == function
    x = torch.randn(1, channels, *extent, dtype=torch.double)
    modes = [m.training for m in net.modules()]
    net.eval()
    with torch.inference_mode():
        expected = net(x)
    for m, mode in zip(net.modules(), modes):
        m.training = mode
    assert np.allclose(interpret(function, x[0].numpy()), expected[0], rtol=0, atol=1e-9)
    return function


@pytest.mark.parametrize("name, options, extent", [
    ("N4", {"activation": "tanh"}, (1, 96, 95)), ("N4", {"recursive": True}, (1, 95, 96)),
    ("VD2D", {}, (1, 110, 109)), ("VD2D3D", {}, (5, 85, 86)),
    ("VD2D3D", {"recursive": True, "activation": "tanh"}, (5, 86, 85)),
])
def test_the_shipped_networks(name, options, extent):
    net = models.build(name, options)
    function = agrees(net, net.in_channels, extent)
    assert function.name == name.lower() and tuple(function.least.values()) == net.field_of_view
    assert {c.name for c in function.constants} == set(net.state_dict())


def test_golden_text_of_a_network_in_torchs_layers():
    net = tnn.Sequential(tnn.Conv3d(1, 4, (1, 3, 3)), tnn.BatchNorm3d(4), tnn.ReLU(inplace=True),
                         tnn.MaxPool3d((1, 2, 2), stride=1), tnn.Dropout3d(),
                         tnn.Conv3d(4, 2, 1, dilation=2, bias=False))
    assert str(agrees(net, 1, (2, 9, 8))) == """\
fn sequential(%x: f64[1, z, y, x]) -> f64[2, z, y - 3, x - 3] {
  const @0.weight: f64[4, 1, 1, 3, 3]
  const @0.bias: f64[4]
  const @1.scale: f64[4]
  const @1.bias: f64[4]
  const @5.weight: f64[2, 4, 1, 1, 1]
  let %0.conv3d: f64[4, z, y - 2, x - 2] = conv3d(%x, @0.weight)
  let %0: f64[4, z, y - 2, x - 2] = bias(%0.conv3d, @0.bias)
  let %1.scale: f64[4, z, y - 2, x - 2] = scale(%0, @1.scale)
  let %1: f64[4, z, y - 2, x - 2] = bias(%1.scale, @1.bias)
  let %2: f64[4, z, y - 2, x - 2] = relu(%1)
  let %3: f64[4, z, y - 3, x - 3] = max_filter(%2, window=(1, 2, 2))
  let %5: f64[2, z, y - 3, x - 3] = conv3d(%3, @5.weight, dilation=(2, 2, 2))
  return %5
}"""


def test_batch_normalisation_uses_its_running_statistics():
    net = tnn.Sequential(tnn.BatchNorm3d(2), tnn.Conv3d(2, 3, 1), tnn.BatchNorm3d(3, affine=False)).double()
    net(torch.randn(4, 2, 3, 5, 7, dtype=torch.double) * 3 + 1)
    agrees(net, 2, (1, 2, 3))
    with pytest.raises(UnsupportedLayer, match=r"0 \(BatchNorm3d\): expected running statistics"):
        trace(tnn.Sequential(tnn.BatchNorm3d(2, track_running_stats=False)))


class Branches(tnn.Module):
    """What a `forward` may do itself."""

    def __init__(self):
        super().__init__()
        self.image, self.map = nn.Conv3d(1, 3, (1, 3, 3)), nn.Conv3d(1, 3, (1, 1, 3), bias=False)
        self.deep, self.head = nn.Conv3d(3, 3, (1, 2, 2), activation=nn.Tanh()), tnn.Conv3d(6, 2, 1)
        self.drop = nn.Dropout()

    def forward(self, x):
        x = 2 * x - 1
        a = torch.relu(self.image(x[:, :1]) + self.map(x[:, -1:, :, 1:-1]))
        b = self.drop(nn.max_filter3d(self.deep(a), (1, 2, 1)))
        c = nn.conv3d(a, self.deep.weight, self.deep.bias, activation="relu", plus=[(a, self.deep.weight, 1)])
        y = torch.cat([a[..., 1:-1, :-1], 0.5 - b / 3], dim=1)
        return self.head(y).tanh() + -self.head(torch.cat((c, c), 1))[:, :, :, :-1]


def test_a_forward_may_branch_slice_add_and_join():
    function = agrees(Branches(), 2, (2, 9, 11), given=2)
    assert "channels(%sub, first=1, end=2)" in str(function) and "crop(" in str(function)
    assert function.definitions["image"].op == "bias" and function.definitions["head:2"].op == "bias"


def test_a_layer_by_itself_and_one_used_twice():
    assert agrees(nn.Conv3d(2, 3, (1, 2, 2), activation=nn.ReLU()), 2, (1, 4, 5)).name == "conv3d"
    layer = nn.Conv3d(2, 2, (1, 2, 2))
    function = agrees(tnn.Sequential(layer, layer), 2, (1, 4, 5))
    assert len(function.constants) == 2 and [each.call.op for each in function.lets] == ["conv3d", "bias"] * 2


def test_the_network_and_its_mode_are_left_as_they_were():
    net = tnn.Sequential(nn.Conv3d(1, 2, 1), nn.Dropout())
    net.train()
    function = trace(net)
    net[0].weight.data.zero_()
    assert net.training and net[1].training and function.weights["0.weight"].all()


class Gate(tnn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Two(tnn.Module):
    def forward(self, x, y):
        return x + y


class Pair(tnn.Module):
    def forward(self, x):
        return x, x


class Own(nn.Conv3d):
    def forward(self, x):
        return torch.sin(super().forward(x))


@pytest.mark.parametrize("net, message", [
    (tnn.Sequential(nn.Conv3d(1, 2, 1), tnn.InstanceNorm3d(2)),
     r"1 \(InstanceNorm3d\): expected one of the layers of znn.nn, .*found another: replace it, or run the network as"),
    (tnn.Sequential(tnn.Conv3d(1, 2, 3, padding=1)), r"0 \(Conv3d\): expected padding \(0, 0, 0\), found \(1, 1, 1\)"),
    (tnn.Sequential(tnn.Conv3d(1, 2, 3, padding="same")), r"expected padding \(0, 0, 0\), found same"),
    (tnn.Sequential(tnn.Conv3d(2, 2, 3, stride=(1, 2, 2))), r"expected stride \(1, 1, 1\), found \(1, 2, 2\)"),
    (tnn.Sequential(tnn.Conv3d(2, 2, 3, groups=2)), "expected groups 1, found 2"),
    (tnn.Sequential(tnn.Conv3d(1, 2, 1), tnn.MaxPool3d(2)), r"1 \(MaxPool3d\): .*found 2: use znn.nn.MaxFilter3d"),
    (tnn.Sequential(nn.Conv3d(1, 2, 1), Gate()), "Sequential.forward: expected steps that depend on no value"),
    (Two(), r"Two.forward: expected to take one tensor, found \(x, y\): join the inputs"),
    (tnn.Sequential(nn.Conv3d(1, 2, 1), Pair()), "Sequential.forward: expected to return one tensor, found tuple"),
    (Own(1, 2, 1), r"sin \(sin\): expected one of the layers"),
])
def test_what_cannot_be_compiled_is_named(net, message):
    with pytest.raises(UnsupportedLayer, match=message):
        trace(net)


@pytest.mark.parametrize("step, message", [
    (lambda x: x[:, :, 0], r"getitem \(getitem\): expected x\[:, first:end"),
    (lambda x: x[:, :, :5], "getitem"), (lambda x: x[:, :, ::2], "getitem"), (lambda x: x[0], "getitem"),
    (lambda x: torch.cat([x, x]), r"cat \(cat\): expected dim=1, the channels, found 0"),
    (lambda x: x * x, r"mul: expected a number, or a tensor \(2, 1, 1, 1\) of one for each channel, .*found %x"),
    (lambda x: x + torch.ones(3), r"add: expected a number, .*found a tensor \(3,\)"),
    (lambda x: 1 / x, "truediv: expected a number to divide by, found %x"),
    (lambda x: torch.add(x, x, alpha=2), r"add \(add\): expected the usual arguments, found others .*alpha"),
    (lambda x: x[:, :1].relu_(), r"relu_ \(relu_\): expected a tensor of its own to change in place, found a part of"),
    (lambda x: (x[:, :1], x.relu_())[0], "leave out inplace"),
    (lambda x: (x[:, :1], operator.iadd(x, 1))[0], r"iadd \(iadd\): expected a tensor of its own to change in place"),
    (lambda x: x.mean(), r"mean \(mean\): expected one of"),
    (lambda x: torch.nn.functional.dropout(x), r"expected training=self.training"),
])
def test_operations_that_cannot_be_compiled_are_named(step, message):
    class Step(tnn.Module):
        in_channels = 2

        def forward(self, x):
            return step(x)

    with pytest.raises(UnsupportedLayer, match=message):
        trace(Step())


class InPlace(tnn.Module):
    """What comes before a change in place sees it; so does what is the same tensor under another name."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.same = nn.Conv3d(1, 2, 1), tnn.ReLU(inplace=True), tnn.Identity()
        self.gain = tnn.Parameter(torch.tensor([2.0, -3.0]).reshape(2, 1, 1, 1))

    def forward(self, x):
        a = self.a(x)
        twin = self.same(a)
        b = self.b(a)
        c = (a - 0.5) * self.gain
        d = torch.relu(c)
        c.tanh_()
        e, f = c, c * 1
        e += d
        e *= self.gain
        f -= 1.5
        f.div_(3)
        return torch.cat([a, twin, b, c, d, e, f], dim=1)


def test_changes_in_place_are_seen_under_every_name():
    agrees(InPlace(), 1, (2, 3, 4))


def test_layers_that_do_not_fit_are_named():
    with pytest.raises(IllTyped, match=r"1.conv3d \(conv3d\): expected an input of 3 channels"):
        trace(tnn.Sequential(nn.Conv3d(1, 2, 1), nn.Conv3d(3, 2, 1)))
    with pytest.raises(GraphError, match=r"Conv3d: expected weights of torch.float32 or .*, found torch.bfloat16"):
        trace(nn.Conv3d(1, 2, 1).bfloat16())
    with pytest.raises(GraphError, match="ReLU: expected a layer that says how many channels it takes"):
        trace(tnn.ReLU())
