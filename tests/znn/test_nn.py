"""Layers: autograd, agreement of the engines, shapes, initialisation, errors."""
import pytest
import torch
from torch import nn as tnn

import znn
from znn import nn

TANH = nn.Tanh()


@pytest.fixture(autouse=True)
def restore_engine():
    yield
    znn.use_engine("znn")


def small_net():
    torch.manual_seed(0)
    return tnn.Sequential(nn.Conv3d(2, 5, (1, 3, 3), activation=nn.ReLU()), nn.MaxFilter3d((1, 2, 2)),
                          nn.Conv3d(5, 7, (2, 3, 3), dilation=(1, 2, 2), activation=TANH), nn.Dropout(0.5),
                          nn.Conv3d(7, 2, 1))


@pytest.mark.parametrize("activation", [None, nn.ReLU(), TANH])
def test_gradcheck_convolution(activation):
    torch.manual_seed(1)
    conv = nn.Conv3d(2, 3, (2, 2, 3), dilation=(1, 2, 1), activation=activation).double()
    x = torch.randn(2, 2, 3, 5, 6, dtype=torch.double, requires_grad=True)
    f = lambda x, w, b: nn.conv3d(x, w, b, conv.dilation, activation and activation.kind)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x, conv.weight, conv.bias))


def test_gradcheck_max_filter():
    torch.manual_seed(2)
    x = torch.randn(1, 2, 3, 6, 7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: nn.max_filter3d(x, (2, 2, 2), (1, 2, 1)), (x,))


def test_engines_agree_on_outputs_and_gradients():
    net, x = small_net().eval(), torch.randn(2, 2, 4, 13, 17)
    results = []
    for engine in nn.ENGINES:
        znn.use_engine(engine)
        net.zero_grad()
        y = net(x)
        y.square().mean().backward()
        results.append([y.detach()] + [p.grad.clone() for p in net.parameters()])
    for a, b in zip(*results):
        assert torch.allclose(a, b, atol=1e-5)


def test_inputs_need_not_be_contiguous():
    net = nn.Conv3d(2, 3, (1, 3, 3))
    x = torch.randn(1, 5, 9, 8, 2).permute(0, 4, 1, 2, 3)
    assert torch.allclose(net(x), net(x.contiguous()))


def test_a_weight_changed_before_backward_is_noticed():
    net = nn.Conv3d(1, 1, (1, 2, 2))
    y = net(torch.randn(1, 1, 1, 4, 4, requires_grad=True))
    with torch.no_grad():
        net.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_field_of_view_of_any_network():
    class Branches(tnn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv3d(1, 2, (1, 5, 5)), nn.Conv3d(1, 2, (1, 3, 3), dilation=(1, 2, 2))

        def forward(self, x):
            return self.a(x) + self.b(x)

    assert nn.field_of_view(small_net(), 2) == (2, 8, 8)
    assert nn.field_of_view(Branches()) == (1, 5, 5)
    assert nn.valid_shape(small_net(), (3, 20, 21), 2) == (2, 13, 14)
    with pytest.raises(ValueError, match=r"smaller than the field of view \(2, 8, 8\)"):
        nn.valid_shape(small_net(), (3, 7, 21), 2)


@pytest.mark.parametrize("kind, expect", [
    ("msra", (2 / 450) ** 0.5), ("xavier", (2 / (450 + 900)) ** 0.5), ("standard", (1 / 450 / 3) ** 0.5),
    ("uniform", 0.05 / 3 ** 0.5), ("gaussian", 0.01)])
def test_initial_spread(kind, expect):
    torch.manual_seed(3)
    conv = nn.Conv3d(50, 100, (1, 3, 3))
    nn.initialise(conv, kind)
    assert conv.weight.std().item() == pytest.approx(expect, rel=0.03)
    assert conv.weight.mean().abs() < 0.05 * expect and not conv.bias.any()


@pytest.mark.parametrize("engine", nn.ENGINES)
def test_operands_of_another_kind_are_refused(engine):
    znn.use_engine(engine)
    x, w, b = torch.zeros(1, 1, 1, 4, 4), torch.zeros(2, 1, 1, 3, 3), torch.zeros(2)
    for operands in ((x.double(), w, b), (x, w.double(), b), (x, w, b.double())):
        with pytest.raises(ValueError, match=r"expects (weight|bias) like its input, torch.float\d\d on cpu, found"):
            nn.conv3d(*operands)
    with pytest.raises(ValueError, match=r"a bias for each of 2 channels, found \(3,\)"):
        nn.conv3d(x, w, torch.zeros(3))


def test_clear_refusals():
    with pytest.raises(ValueError, match="engine 'cuda' is unknown: choose one of znn, torch"):
        znn.use_engine("cuda")
    with pytest.raises(ValueError, match=r"expects \(N, 1, Z, Y, X\), found \(1, 2, 3, 4, 5\)"):
        nn.Conv3d(1, 2, 1)(torch.zeros(1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"needs at least \(1, 5, 5\) voxels .* found \(3, 4, 5\)"):
        nn.Conv3d(1, 2, (1, 3, 3), dilation=2)(torch.zeros(1, 1, 3, 4, 5))
    with pytest.raises(ValueError, match="expects at least one volume, found none"):
        nn.Conv3d(1, 2, 1)(torch.zeros(0, 1, 3, 4, 5))
    with pytest.raises(ValueError, match="initialisation 'he' is unknown: choose one of msra"):
        nn.initialise(nn.Conv3d(1, 1, 1), "he")
    with pytest.raises(ValueError, match="expected a positive integer or three"):
        nn.Conv3d(1, 1, (3, 3))
