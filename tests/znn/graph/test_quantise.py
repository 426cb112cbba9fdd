"""Networks in integers: what the pass makes of a text, that the meaning stays, and that it is run to the last bit."""
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn as tnn

import models
import znn
from tests.znn.graph.functions import functions, volume_for
from tests.znn.graph.narrowed import Users, check_run
from tests.znn.graph.test_compile import NETWORKS, in_double_precision, small
from znn import nn
from znn.codegen import target
from znn.graph.compiled import has_instruction
from znn.graph.errors import GraphError
from znn.graph.interpreter import interpret
from znn.graph.ir import check
from znn.graph.passes import stages
from znn.graph.passes.quantise import quantise, watched
from znn.graph.text import parse

BEFORE = """\
fn net(%x: f32[2, z, y, x]) -> f32[2, z, y - 3, x] {
  const @a: f32[4, 2, 1, 1, 1]
  const @b: f32[4, 4, 1, 2, 1]
  const @bias: f32[4]
  const @c: f32[3, 4, 1, 1, 1]
  const @d: f32[4, 7, 1, 2, 1]
  const @e: f32[2, 4, 1, 1, 1]
  let %a: f32[4, z, y, x] = conv3d(%x, @a, activation="relu")
  let %pool: f32[4, z, y - 1, x] = max_filter(%a, window=(1, 2, 1))
  let %b: f32[4, z, y - 2, x] = conv3d(%pool, @b, bias=@bias, activation=(1.7, 0.6))
  let %c: f32[3, z, y - 2, x] = conv3d(%b, @c)
  let %joined: f32[7, z, y - 2, x] = concat(%b, %c)
  let %d: f32[4, z, y - 3, x] = conv3d(%joined, @d, activation="relu")
  let %e: f32[2, z, y - 3, x] = conv3d(%d, @e)
  return %e
}"""

AFTER = """\
fn net(%x: f32[2, z, y, x]) -> f32[2, z, y - 3, x] {
  const @a:2: f32[4, 2, 1, 1, 1]
  const @b.i8: i8[4, 4, 1, 2, 1]
  const @bias: f32[4]
  const @b.factors: f32[4]
  const @c.i8: i8[3, 4, 1, 1, 1]
  const @c.bias: f32[3]
  const @c.factors: f32[3]
  const @d.i8: i8[4, 7, 1, 2, 1]
  const @d.bias: f32[4]
  const @d.factors: f32[4]
  const @e.i8: i8[2, 4, 1, 1, 1]
  const @e.factors: f32[2]
  let %a: u8[4, z, y, x] = conv3d(%x, @a:2, activation="relu", result="u8")
  let %pool: u8[4, z, y - 1, x] = max_filter(%a, window=(1, 2, 1))
  let %b: u8[4, z, y - 2, x] = conv3d(%pool, @b.i8, bias=@bias, factors=@b.factors, activation=(127.0, 0.6), \
result="u8", zero=128)
  let %c: u8[3, z, y - 2, x] = conv3d(%b, @c.i8, bias=@c.bias, factors=@c.factors, result="u8", zero=128)
  let %joined: u8[7, z, y - 2, x] = concat(%b, %c)
  let %d: u8[4, z, y - 3, x] = conv3d(%joined, @d.i8, bias=@d.bias, factors=@d.factors, activation="relu", result="u8")
  let %e: f32[2, z, y - 3, x] = conv3d(%d, @e.i8, factors=@e.factors)
  return %e
}"""

CASTS = """\
fn net(%x: f32[4, z, y, x]) -> f32[1, z, y, x] {
  const @a: f32[4, 4, 1, 1, 1]
  const @b: f32[4, 4, 1, 1, 1]
  const @e: f32[1, 4, 1, 1, 1]
  let %a: f32[4, z, y, x] = conv3d(%x, @a)
  let %act: f32[4, z, y, x] = tanh(%a)
  let %b: f32[4, z, y, x] = conv3d(%act, @b, activation="relu")
  let %c: f32[4, z, y, x] = conv3d(%b, @a)
  let %d: f32[4, z, y, x] = conv3d(%c, @b)
  let %e: f32[1, z, y, x] = conv3d(%b, @e)
  let %f: f32[1, z, y, x] = conv3d(%d, @e, activation="relu", onto=%e)
  return %f
}"""

WITH_CASTS = """\
  let %a: f32[4, z, y, x] = conv3d(%x, @a)
  let %act: f32[4, z, y, x] = tanh(%a)
  let %act.cast: u8[4, z, y, x] = cast(%act, by=@act.by, to="u8", zero=128)
  let %b: u8[4, z, y, x] = conv3d(%act.cast, @b.i8, bias=@b.bias, factors=@b.factors, activation="relu", result="u8")
  let %b.cast: f32[4, z, y, x] = cast(%b, by=@b.by)
  let %c: u8[4, z, y, x] = conv3d(%b.cast, @a:2, result="u8", zero=128)
  let %d: u8[4, z, y, x] = conv3d(%c, @b.i8:2, bias=@d.bias, factors=@d.factors, result="u8", zero=128)
  let %e: f32[1, z, y, x] = conv3d(%b, @e.i8, factors=@e.factors)
  let %f: f32[1, z, y, x] = conv3d(%d, @e.i8:2, bias=@f.bias, onto=%e, factors=@f.factors, activation="relu")
  return %f"""


def with_weights(text):
    """The function of a text, its weights drawn."""
    function, rng = parse(text), np.random.default_rng(0)
    return parse(text, {c.name: rng.standard_normal(c.type.shape).astype(np.float32) for c in function.constants})


def seen(function, x):
    """Ranges as calibration finds them, from the interpreter: every value that is watched."""
    return {name: np.abs(interpret(up_to(function, name), x)).max((1, 2, 3)).tolist() for name in watched(function)}


def up_to(function, name):
    var = next(each.var for each in function.lets if each.var.name == name)
    return type(function)(function.name, function.params, function.lets, var, function.weights)


@pytest.mark.parametrize("before, after", [(BEFORE, AFTER), (CASTS, WITH_CASTS)], ids=["classes", "casts"])
def test_golden_text(before, after):
    """Weights that meet different numbers become different integers; a tanh needs no calibration, and values that are
    joined have one zero."""
    function = with_weights(before)
    made = check(quantise(function, seen(function, volume_for(function))))
    assert after in str(made) and parse(str(made), made.weights) == made
    assert watched(function) == ({"a", "c", "d"} if before is BEFORE else {"b", "c", "d"})


def test_what_integers_stand_for_is_in_the_weights():
    """A convolution by hand: by is 255 over the range, weights reach 127."""
    function = with_weights(BEFORE.replace("bias=@bias, activation=(1.7, 0.6)", "bias=@bias, activation=\"relu\""))
    ranges = {"a": [1, 2, 4, 0.001], "b": [5, 6, 7, 8], "c": [1, 1, 1], "d": [1, 1, 1, 1]}
    made, old = quantise(function, ranges).weights, function.weights
    by, after = 255 / np.array([1, 2, 4, 4 / 64]), 127 / np.array([5, 6, 7, 8])
    assert np.allclose(made["a:2"], old["a"] * by[:, None, None, None, None])
    real = made["b.i8"] * (made["b.factors"] / after)[:, None, None, None, None] * by[:, None, None, None]
    step = (made["b.factors"] / after)[:, None, None, None, None] * by[:, None, None, None]
    assert (np.abs(real - old["b"]) <= 0.5001 * step).all()
    assert (np.abs(made["b.i8"]).max((1, 2, 3, 4)) == 127).all()
    assert np.allclose(made["bias:2"], old["bias"] * after)


def with_whole_weights(function):
    """The function with convolutions whose weights are integers that reach 127 for every output."""
    rng, weights = np.random.default_rng(0), dict(function.weights)
    for each in function.lets:
        if each.call.op == "conv3d":
            w = weights[each.call["weight"].name]
            found = rng.integers(-127, 128, w.shape)
            found[:, 0, 0, 0, 0] = 127
            weights[each.call["weight"].name] = found.astype(np.float32)
    return replace(function, weights=weights)


@given(functions())
@settings(deadline=None, max_examples=60)
def test_the_meaning_stays(function):
    """Where integers hold the weights exactly, and nothing else is rounded."""
    function, x = with_whole_weights(function), volume_for(function)
    variables = {each.var.name: each.var for each in function.lets}
    ranges = {name: [1.7] * variables[name].type.shape[0] for name in watched(function)}  # as those of tanh here
    made = check(quantise(function, ranges))
    assert parse(str(made), made.weights) == made
    expected = interpret(function, x)
    assert np.abs(interpret(made, x) - expected).max() <= 1e-5 * np.abs(expected).max()


@given(functions())
@settings(deadline=None, max_examples=60)
def test_any_function_is_run_as_the_interpreter_does_with_rounded_values(function):
    x = volume_for(function).astype(np.float32)
    whole = stages(function)["assign_precision"]
    made = stages(function, "int8", ranges=seen(whole, x))["assign_precision"]
    check_run(made, x, "u8", lambda values: np.clip(np.rint(values), 0, 255))


@pytest.mark.parametrize("name", target.available())
@pytest.mark.parametrize("network, options", NETWORKS)
def test_shipped_networks_are_close_to_double_precision(network, options, name):
    net, x = small(network, options)
    exact = in_double_precision(net, x)
    with target.use_target(name):
        found = znn.compile(net, "int8", samples=[x])(x.numpy())
    apart = found - exact
    assert found.dtype == np.float32 and 1e-4 < np.sqrt((apart**2).mean()) / exact.std() < 0.1


def test_whether_the_processor_is_made_for_it():
    with target.use_target("generic"):
        assert has_instruction("fp32") and not has_instruction("int8") and not has_instruction("bf16")
    assert has_instruction("int8") == bool(target.current().instruction("dot u8", 16))


def test_maps_between_take_a_quarter_of_the_memory():
    net = models.build("N4").eval()
    x = torch.randn(1, 1, 1, 95, 95)
    whole, quarter = (znn.compile(net, precision, samples=samples).peak_bytes((1, 200, 200))
                      for precision, samples in (("fp32", None), ("int8", [x])))
    assert quarter < 0.3 * whole  # the input of the first layer and its result are float32


@pytest.mark.parametrize("extent", [(3, 30, 7), (3, 7, 61), (2, 30, 83)], ids=str)
def test_a_users_network(extent):
    torch.manual_seed(0)
    net, x = Users().eval(), torch.randn(2, 2, *extent)
    with torch.inference_mode():
        expected = net(x)
    fast = znn.compile(net, "int8", samples=[x[:1], x[1:]])
    found = fast(x)
    assert found.shape == expected.shape and (found - expected).abs().max() < 0.05 * expected.abs().max()
    again = znn.compile(net, "int8", ranges=json.loads(json.dumps(fast.ranges)))
    assert torch.equal(again(x), found) and again.text == fast.text and znn.compile(net).ranges is None


def test_the_ranges_are_those_of_all_samples():
    torch.manual_seed(0)
    net, (small, large) = models.build("N4").eval(), (s * torch.randn(1, 1, 1, 95, 95) for s in (0.1, 3))
    one, other, both = (znn.compile(net, "int8", samples=s).ranges for s in ([small], [large], [large, small]))
    assert sorted(both) == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    for name in both:
        assert both[name] == np.maximum(one[name], other[name]).tolist()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_constant_network(value):
    """Weights that are all zero, or all one: what comes out is the same everywhere, and right."""
    class Constant(tnn.Module):
        def __init__(self):
            super().__init__()
            self.layers = tnn.Sequential(*(nn.Conv3d(a, b, (1, 2, 2), activation=nn.ReLU())
                                           for a, b in ((1, 4), (4, 5), (5, 3))), nn.Conv3d(3, 2, (1, 1, 1)))

        def forward(self, x):
            return self.layers(x)

    net = Constant().eval()
    for p in net.parameters():
        torch.nn.init.constant_(p, value)
    x = torch.ones(1, 1, 1, 7, 61)
    with torch.inference_mode():
        expected = net(x)
    assert torch.allclose(znn.compile(net, "int8", samples=[x])(x), expected, rtol=1e-5)


@pytest.mark.parametrize("options, message", [
    ({}, r"precision int8: expected ranges or samples, found none: int8, and nothing else, is calibrated"),
    ({"precision": "bf16", "ranges": {}}, "precision bf16: expected no ranges or samples, found some"),
    ({"samples": []}, "samples: expected one or more inputs to calibrate on, found none"),
    ({"samples": [torch.full((1, 1, 1, 95, 95), torch.nan)]}, "conv1: expected finite values on the samples"),
    ({"samples": [torch.zeros(1, 1, 1, 5, 5)]}, "expected an input of 1 channel.*least .1, 95, 95. voxels"),
    ({"samples": [], "ranges": {}}, "samples, ranges: expected one of them, found both"),
    ({"ranges": {}}, "conv1: expected the largest magnitude of each of 48 channels, found None: give the ranges"),
    ({"ranges": {f"conv{i}": [1.0] * 47 + [np.inf] for i in range(1, 6)}}, "conv1: expected the largest magnitude"),
], ids=str)
def test_what_calibration_lacks_is_said(options, message):
    with pytest.raises(GraphError, match=message):
        znn.compile(models.build("N4"), **{"precision": "int8", **options})


def test_weights_that_are_not_finite_are_refused():
    net = models.build("N4")
    ranges = znn.compile(net, "int8", samples=[torch.zeros(1, 1, 1, 95, 95)]).ranges
    net.conv2.weight.data[0, 0] = np.nan
    with pytest.raises(GraphError, match="conv2: expected finite weights, found NaN or infinity"):
        znn.compile(net, "int8", ranges=ranges)


def test_a_sum_that_int32_may_not_hold_stays_in_float32():
    text = BEFORE.replace("@b: f32[4, 4, 1, 2, 1]", "@b: f32[4, 4, 1, 2, 8290]").replace("x]", "x - 8289]")
    text = text.replace("%x: f32[2, z, y, x - 8289]", "%x: f32[2, z, y, x]").replace(
        "4, z, y, x - 8289] = conv3d(%x, @a", "4, z, y, x] = conv3d(%x, @a").replace(
        "4, z, y - 1, x - 8289]", "4, z, y - 1, x]")
    made = str(check(quantise(with_weights(text), {"a": [1.0] * 4, "c": [1.0] * 3, "d": [1.0] * 4})))
    assert "@b: f32[4, 4, 1, 2, 8290]" in made and "%a: f32[4" in made and "@c.i8" in made
