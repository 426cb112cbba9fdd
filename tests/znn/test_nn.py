"""Layers: autograd, agreement of the engines, shapes, initialisation, errors."""
import numpy as np
import pytest
import torch
from torch import nn as tnn

import znn
from znn import nn
from znn.runtime import pool

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


@pytest.mark.parametrize("wanted", [True, False])
def test_places_of_maxima_are_found_only_for_a_gradient(wanted, monkeypatch):
    found = []
    monkeypatch.setattr(pool, "max_filter_with_places", lambda *a, real=pool.max_filter_with_places: (
        found.append(1), real(*a))[1])
    net = tnn.Sequential(nn.Conv3d(1, 2, (1, 2, 2)), nn.MaxFilter3d((1, 2, 2)))
    x = torch.randn(1, 1, 2, 9, 9)
    with torch.set_grad_enabled(wanted):
        y = net(x)
        net[1](torch.zeros(1, 1, 1, 3, 3, requires_grad=True))
    assert len(found) == 2 * wanted and y.requires_grad == wanted
    net[1](x)  # an input that needs none
    assert len(found) == 2 * wanted


def test_windows_beyond_a_byte_filter_without_a_gradient():
    x = torch.randn(1, 1, 4, 9, 9)
    assert nn.max_filter3d(x, (4, 8, 8)).equal(tnn.functional.max_pool3d(x, (4, 8, 8), stride=1))
    with pytest.raises(ValueError, match="windows of up to 255 taps, found 4 x 8 x 8 = 256"):
        nn.max_filter3d(x.requires_grad_(), (4, 8, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_and_its_gradient_share_a_mask(dtype):
    torch.manual_seed(4)
    x = torch.rand(2, 3, 2, 61, 83, dtype=dtype).add_(1).requires_grad_()
    y = nn.Dropout(0.25)(x)
    mask = (y != 0).to(dtype)
    assert 0.7 < mask.mean() < 0.8 and torch.equal(y, x * mask * (1 / 0.75))
    grad = torch.randn_like(x)
    y.backward(grad.transpose(3, 4).contiguous().transpose(3, 4))
    assert torch.equal(x.grad, grad * mask * (1 / 0.75))


def test_gradcheck_dropout():
    x = torch.randn(2, 3, 1, 4, 5, dtype=torch.double, requires_grad=True)

    def f(x):
        torch.manual_seed(5)
        return nn.dropout(x, 0.5)

    assert torch.autograd.gradcheck(f, (x,)) and torch.autograd.gradgradcheck(f, (x,))


def test_dropout_follows_the_state_of_torchs_generator():
    drop, x = nn.Dropout(0.5), torch.ones(1, 2, 3, 20, 30)
    torch.manual_seed(6)
    first = drop(x)
    state = torch.get_rng_state()
    second, third = drop(x), drop(x)
    assert not torch.equal(first, second) and not torch.equal(second, third)
    torch.set_rng_state(state)
    assert torch.equal(drop(x), second) and torch.equal(drop(x), third)
    torch.manual_seed(6)
    assert torch.equal(drop(x), first)


@pytest.mark.parametrize("engine", nn.ENGINES)
def test_dropout_of_nothing_of_everything_and_in_evaluation(engine):
    znn.use_engine(engine)
    x = torch.randn(1, 2, 1, 4, 5, requires_grad=True)
    state = torch.get_rng_state()
    assert torch.equal(nn.Dropout(0)(x), x) and torch.equal(nn.Dropout(0.5).eval()(x), x)
    assert torch.equal(torch.get_rng_state(), state)
    y = nn.Dropout(1)(x)
    assert not y.any()
    y.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("engine, x", [("torch", torch.ones(9, 99)), ("znn", torch.ones(9, 99, dtype=torch.bfloat16)),
                                       ("znn", torch.ones(9, 99, device="meta"))], ids=["engine", "type", "device"])
def test_dropout_falls_back_on_torch(engine, x):
    znn.use_engine(engine)
    torch.manual_seed(7)
    y = nn.Dropout(0.5)(x)
    torch.manual_seed(7)
    expected = tnn.functional.dropout(x, 0.5)
    assert (y.dtype, y.device, y.shape) == (x.dtype, x.device, x.shape)
    assert x.is_meta or torch.equal(y, expected)


def test_dropout_in_place():
    x = torch.ones(1, 2, 1, 40, 50)
    assert nn.Dropout(0.5, inplace=True)(x) is x and 0 < (x == 0).sum() < x.numel()


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
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="expects a probability between 0 and 1, found"):
            nn.dropout(torch.zeros(3), p)
    with pytest.raises(ValueError, match="expected a positive integer or three"):
        nn.Conv3d(1, 1, (3, 3))


SECOND = {
    "convolution": lambda x, w: nn.conv3d(x, w).square(),
    "linear in each": nn.conv3d,  # with a constant gradient for the output: that of x depends on w all the same
    "max filter": lambda x, w: nn.max_filter3d(x, (1, 2, 2)).square(),
}


@pytest.mark.parametrize("f", SECOND.values(), ids=SECOND)
def test_second_derivatives_are_refused(f):
    torch.manual_seed(9)
    x, w = torch.randn(1, 1, 2, 6, 6, requires_grad=True), torch.randn(2, 1, 1, 3, 3, requires_grad=True)
    grad, = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
    plain, = torch.autograd.grad(f(x, w).sum(), x)
    assert torch.equal(grad, plain), "the first derivative is there as ever"
    with pytest.raises(RuntimeError, match=r'computes first derivatives.*by znn.use_engine\("torch"\) before its'):
        (grad * x).sum().backward()
    znn.use_engine("torch")
    grad, = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
    (grad * x).sum().backward()
    assert x.grad.any()


@pytest.mark.parametrize("engine", nn.ENGINES)
@pytest.mark.parametrize("call, message", [
    (lambda x, w: nn.conv3d(x, w[:, :, 0]), r"weight as a torch.Tensor \(out, in, kz, ky, kx\), none of them 0, found "
                                            r"\(2, 1, 3, 3\): a 2D kernel has kz = 1, as by weight.unsqueeze\(2\)"),
    (lambda x, w: nn.conv3d(x, w[:0]), r"none of them 0, found \(0, 1, 1, 3, 3\)"),
    (lambda x, w: nn.conv3d(x, w.numpy()), "weight as a torch.Tensor .* found ndarray"),
    (lambda x, w: nn.conv3d(x.numpy(), w), r"convolution expects a torch.Tensor \(N, 1, Z, Y, X\), found ndarray: "
                                           "convert an array by torch.from_numpy"),
    (lambda x, w: nn.conv3d(x.int(), w), r"an input of a floating type, found torch.int32: convert it by x.float\(\)"),
    (lambda x, w: nn.conv3d(x, w, plus=[(x, w)]), r"triples \(x, weight, dilation\), found \[2\] values"),
    (lambda x, w: nn.max_filter3d(x.numpy(), 2), "max filter expects a torch.Tensor"),
    (lambda x, w: nn.max_filter3d(x, (1, 2)), "expected a positive integer or three of them"),
    (lambda x, w: nn.max_filter3d(x, 2, (1, 0, 1)), "expected a positive integer or three of them"),
    (lambda x, w: nn.Conv3d(1, 2, 1)(x, x), r"given as \(layer, input\), each layer a znn.nn.Conv3d, found Tensor"),
    (lambda x, w: nn.Conv3d(0, 2, 3), "in_channels as a positive integer, found 0"),
    (lambda x, w: nn.Conv3d(1, 2.5, 3), "out_channels as a positive integer, found 2.5"),
    (lambda x, w: nn.Conv3d(1, 2, 3, bias=torch.zeros(2)), "bias as True or False, found tensor"),
    (lambda x, w: nn.Conv3d(1, 2, 3, activation="relu"), r"znn.nn.ReLU\(\) and znn.nn.Tanh\(\) itself, found 'relu'"),
    (lambda x, w: nn.Tanh("a"), r"a tuple of two numbers \(a, b\)"),
    (lambda x, w: nn.Dropout(2.0), "a probability between 0 and 1, found 2.0"),
    (lambda x, w: nn.dropout(x, "a"), "a probability between 0 and 1, found 'a'"),
    (lambda x, w: nn.initialise(tnn.Linear(1, 1), "msra"), "fills a znn.nn.Conv3d, found Linear"),
])
def test_what_a_newcomer_may_try(engine, call, message):
    znn.use_engine(engine)
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(1, 1, 3, 8, 8), torch.zeros(2, 1, 1, 3, 3))


@pytest.mark.parametrize("engine", nn.ENGINES)
def test_a_window_may_be_one_number(engine):
    znn.use_engine(engine)
    x = torch.randn(1, 1, 4, 8, 8)
    assert nn.max_filter3d(x, 2, 3).equal(tnn.functional.max_pool3d(x, 2, stride=1, dilation=3))


@pytest.mark.parametrize("engine", nn.ENGINES)
def test_a_bias_may_have_any_strides(engine):
    znn.use_engine(engine)
    torch.manual_seed(3)
    x, w = torch.randn(1, 3, 4, 9, 40), torch.randn(4, 3, 1, 3, 3)
    for bias in (torch.arange(8.)[::2], torch.ones(1).expand(4)):
        torch.testing.assert_close(nn.conv3d(x, w, bias), tnn.functional.conv3d(x, w, bias), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dilation", [(1, -1, 1), (1, 0, 1), (2, 2), (1, 1.5, 1), 0, "211"])
def test_dilation_is_three_positive_integers(dilation):
    with pytest.raises(ValueError, match="expected a positive integer or three of them"):
        nn.conv3d(torch.randn(1, 3, 4, 9, 40), torch.randn(4, 3, 1, 3, 3), dilation=dilation)


def test_whole_numbers_of_any_kind_are_extents():
    assert nn.triple(np.array([1, 2, 3])) == (1, 2, 3) and nn.triple(np.int64(2)) == (2, 2, 2)


def test_activations_that_are_none():
    x, w = torch.randn(1, 1, 1, 5, 5), torch.randn(1, 1, 1, 3, 3)
    for kind in ("rleu", "tanh", (1.0,), [1.0, 2.0], ("a", "b")):
        with pytest.raises(ValueError, match='activation must be None, "relu", or a tuple of two numbers'):
            nn.conv3d(x, w, activation=kind)
    with pytest.raises(ValueError, match="or make another the next module"):
        nn.Conv3d(1, 1, 3, activation=tnn.Sigmoid())
