"""Compiled networks compute what the networks compute, in the memory that was planned."""
import threading
import tracemalloc
from types import SimpleNamespace
from unittest import mock

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn as tnn

import models
import znn
from tests.znn.graph.functions import SIZES, functions, volume_for
from znn import nn
from znn.codegen import target
from znn.graph import executor
from znn.graph.errors import GraphError, UnsupportedLayer
from znn.graph.executor import Executable
from znn.graph.interpreter import interpret
from znn.graph.passes import PASSES, stages
from znn.graph.text import parse
from znn.graph.types import TensorType
from znn.loops import Schedule
from znn.runtime import arena, database, request

NETWORKS = [("N4", {"activation": "tanh"}), ("VD2D", {}), ("VD2D3D", {"recursive": True, "activation": "tanh"})]


def small(name, options, further=(1, 4, 20)):
    """A shipped network and an input a little larger than its field of view."""
    torch.manual_seed(0)
    net = models.build(name, options).eval()
    return net, torch.randn(1, net.in_channels, *(f + n for f, n in zip(net.field_of_view, further)))


def in_double_precision(net, x):
    with torch.inference_mode():
        try:
            znn.use_engine("torch")
            return net.double()(x.double()).numpy()
        finally:
            znn.use_engine("znn")
            net.float()


@pytest.mark.parametrize("name, options", NETWORKS)
def test_shipped_networks_equal_the_engine_torch_and_the_meaning(name, options):
    net, x = small(name, options)
    fast = znn.compile(net)
    with torch.inference_mode():
        engine = net(x).numpy()
    exact = in_double_precision(net, x)
    y = fast(x.numpy())
    scale = np.abs(exact).max()
    assert y.dtype == np.float32 and np.abs(y - engine).max() <= 1e-5 * scale
    assert np.abs(y - exact).max() <= 1e-5 * scale
    assert np.abs(interpret(fast.stages["trace"], x[0].numpy()) - exact[0]).max() <= 1e-12 * scale
    assert fast.field_of_view == net.field_of_view and fast.in_channels == net.in_channels


@given(functions(dtype="f64"))
@settings(deadline=None, max_examples=60)
def test_any_function_is_run_as_the_interpreter_does(function):
    """Before and after the passes, in memory whose every number is NaN before."""
    x = volume_for(function)
    expected = interpret(function, x)
    for made in (function, stages(function, "fp64")["assign_precision"]):
        ready = Executable(made.at(SIZES))
        out = np.full(expected.shape, np.nan)
        kept = x.copy()
        with mock.patch.object(executor, "arena", SimpleNamespace(empty=lambda n, dtype: np.full(n, 255, dtype))):
            ready.run(x, out)
        assert np.allclose(out, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
        assert np.array_equal(x, kept)


@pytest.mark.parametrize("without", [[name] for name in PASSES] + [list(PASSES)], ids=str)
def test_every_pass_can_be_switched_off(without):
    net, x = small("VD2D3D", {"recursive": True, "activation": "tanh"}, (1, 2, 3))
    y, other = znn.compile(net)(x), znn.compile(net, without=without)(x)
    assert torch.allclose(y, other, rtol=0, atol=1e-5 * y.abs().max().item())


class Users(tnn.Module):
    """A network in torch's own layers, as somebody may have trained it."""

    def __init__(self):
        super().__init__()
        self.norm = tnn.BatchNorm3d(1)
        self.left = tnn.Sequential(tnn.Conv3d(1, 5, (1, 3, 3)), tnn.BatchNorm3d(5), tnn.ReLU())
        self.right = tnn.Sequential(tnn.Conv3d(1, 4, (3, 3, 3)), tnn.Tanh())
        self.pool = tnn.MaxPool3d((1, 2, 2), stride=1)
        self.head = nn.Conv3d(9, 2, (1, 2, 2), dilation=(1, 2, 2))

    def forward(self, x):
        x = self.norm(x)
        return self.head(torch.relu(self.pool(torch.cat([self.left(x)[:, :, 1:-1], self.right(x)], dim=1)))) - 0.5


def test_a_users_network():
    torch.manual_seed(1)
    net, x = Users(), torch.randn(3, 1, 5, 30, 41) * 4 + 2
    net(x)
    fast = znn.compile(net.eval())
    with torch.inference_mode():
        assert torch.allclose(fast(x), net(x), rtol=0, atol=1e-5)
    assert "scale(" not in fast.text and "bias(" not in fast.text and parse(fast.text) == fast.function
    assert [each.call.op for each in fast.function.lets] == ["conv3d", "crop", "conv3d", "concat", "relu", "max_filter",
                                                             "conv3d"]


@pytest.mark.parametrize("name", target.available())
def test_every_target(name):
    net, x = small("VD2D3D", {"recursive": True}, (0, 1, 18))
    fast = znn.compile(net)
    expected = fast(x)
    with target.use_target(name):
        assert torch.allclose(fast(x), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def test_numpy_and_torch_batches_types_and_strides():
    net = nn.Conv3d(2, 3, (1, 3, 3), activation=nn.ReLU())
    fast, x = znn.compile(net), np.random.default_rng(0).standard_normal((4, 2, 3, 9, 20)).astype(np.float32)
    y = fast(x)
    assert isinstance(y, np.ndarray) and y.shape == (4, 3, 3, 7, 18) and y.dtype == np.float32
    assert np.allclose(y, net(torch.from_numpy(x)).detach(), rtol=0, atol=1e-5)
    t = torch.from_numpy(x).requires_grad_()
    assert isinstance(fast(t), torch.Tensor) and not fast(t).requires_grad and np.array_equal(fast(t).numpy(), y)
    assert np.array_equal(fast(x.transpose(0, 1, 2, 4, 3).copy().transpose(0, 1, 2, 4, 3)), y)
    assert np.array_equal(fast(x.astype(np.float64)), y)
    assert fast(x[:0]).shape == (0, 3, 3, 7, 18)
    assert znn.compile(net, "fp64")(x).dtype == np.float64
    again = fast(x)
    assert np.array_equal(again, y) and not np.shares_memory(again, y)


def test_weights_are_those_of_the_moment_of_compiling():
    net = nn.Conv3d(1, 2, (1, 2, 2))
    fast, x = znn.compile(net), torch.randn(1, 1, 1, 8, 9)
    before = fast(x)
    net.weight.data.zero_()
    assert torch.equal(fast(x), before) and not torch.equal(znn.compile(net)(x), before)


@pytest.mark.parametrize("text", ["relu(%x)", "channels(%x, first=1, end=2)", "concat(%x, %x)", "add(%x, %x)"])
def test_inputs_and_their_parts_may_be_the_result_and_stay_as_they_are(text):
    channels = {"channels": 1, "concat": 4}.get(text.split("(")[0], 2)
    function = parse(f"fn f(%x: f32[2, z, y, x]) -> f32[{channels}, z, y, x] {{\n"
                     f"let %y: f32[{channels}, z, y, x] = {text}\nreturn %y\n}}")
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    kept, out = x.copy(), np.empty((channels, 3, 4, 5), np.float32)
    Executable(function.at({"z": 3, "y": 4, "x": 5})).run(x, out)
    assert np.allclose(out, interpret(function, kept)) and np.array_equal(x, kept)


def test_a_run_allocates_one_block_and_the_result(monkeypatch):
    net, x = small("VD2D3D", {"recursive": True}, (3, 40, 50))
    fast, asked = znn.compile(net), []
    fast(x)
    real = arena.empty
    monkeypatch.setattr(arena, "empty", lambda shape, dtype: (asked.append(np.prod(shape) * dtype.itemsize),
                                                              real(shape, dtype))[1])
    tracemalloc.start()
    y = fast(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert asked == [y.nbytes, fast.peak_bytes(x.shape[2:]) - y.nbytes]
    assert peak < 1 << 20  # Python's own small objects; the blocks were kept from the first run


def test_the_peak_is_known_before_running_and_less_than_all_values(monkeypatch):
    net, x = small("VD2D3D", {"recursive": True}, (3, 40, 50))
    fast = znn.compile(net)
    with monkeypatch.context() as m:
        m.setattr(Executable, "run", None)
        peak = fast.peak_bytes(x.shape[2:])
    function = fast.function.at(dict(zip("zyx", x.shape[2:])))
    values = sum(TensorType.nbytes.fget(each.var.type) for each in function.lets if each.call.op != "channels")
    assert max(each.var.type.nbytes for each in function.lets) < peak < values / 3


def test_an_extent_is_made_ready_once_and_a_few_are_kept(monkeypatch):
    made = []
    monkeypatch.setattr(executor.Executable, "__init__", lambda self, f, real=executor.Executable.__init__: (
        made.append(f), real(self, f))[1])
    fast = znn.compile(nn.Conv3d(1, 1, 1))
    for width in [*range(1, 20), 19, 19, 1]:
        fast(np.zeros((1, 1, 1, 1, width), np.float32))
    assert len(made) == 20  # the first was no longer kept
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        fast(np.zeros((1, 1, 1, 1, 19), np.float32))
    finally:
        numba.set_num_threads(threads)
    assert len(made) == (21 if threads > 1 else 20)


def test_schedules_that_are_stored_later_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("ZNN_SCHEDULES", str(tmp_path / "schedules.sqlite"))
    database.forget()
    asked, fast, x = [], znn.compile(nn.Conv3d(4, 4, 1)), np.ones((1, 4, 2, 6, 20), np.float32)
    monkeypatch.setattr(request, "kernel", lambda contraction, schedule, *args, real=request.kernel, **named: (
        asked.append((contraction, schedule)) or real(contraction, schedule, *args, **named)))
    expected = fast(x)
    (contraction, rule), = asked
    other = Schedule.parse(str(rule).replace("z:1 parallel, y:1 parallel", "y:1 parallel, z:1 parallel"))
    assert np.array_equal(fast(x), expected) and len(asked) == 1 and other != rule
    database.store(contraction, other, 1e-9, "a test", x.dtype, "before")
    assert np.array_equal(fast(x), expected) and asked[1:] == [(contraction, other)]


def test_several_threads_may_run_it_at_once():
    net, x = small("VD2D3D", {"recursive": True}, (0, 1, 2))
    fast = znn.compile(net)
    inputs = [x * k for k in range(1, 5)]
    expected, found = [fast(i) for i in inputs], [None] * len(inputs)

    def work(i):
        for _ in range(3):
            found[i] = fast(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


def test_errors_say_what_is_expected():
    fast = znn.compile(nn.Conv3d(2, 1, (1, 3, 3)))
    assert repr(fast) == "<compiled conv3d, f32[2, z, y, x] -> f32[1, z, y - 2, x - 2]>"
    with pytest.raises(GraphError, match=r"conv3d: expected an input \(N, channels, z, y, x\), found an array of"):
        fast(np.zeros((1, 4, 4), np.float32))
    with pytest.raises(GraphError, match=r"expected an input of 2 channel\(s\) and at least \(1, 3, 3\) voxels \(z, y, "
                                         r"x\), found 2 and \(1, 3, 2\): give it these channels, and no less"):
        fast(np.zeros((1, 2, 1, 3, 2), np.float32))
    with pytest.raises(GraphError, match="found 1 and"):
        fast(np.zeros((1, 1, 1, 9, 9), np.float32))
    with pytest.raises(GraphError, match="precision: expected one of fp32, fp64, bf16, int8, found 'fp8'"):
        znn.compile(nn.Conv3d(2, 1, 1), "fp8")
    with pytest.raises(UnsupportedLayer, match=r"1 \(GroupNorm\)"):
        znn.compile(tnn.Sequential(nn.Conv3d(1, 4, 1), tnn.GroupNorm(2, 4)))
