"""Networks in bf16: what the pass makes of a text, that the meaning stays, and how precisely it is run."""
import re
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import models
import znn
from tests.znn.graph.functions import functions, volume_for
from tests.znn.graph.narrowed import Users, check_run
from tests.znn.graph.test_compile import NETWORKS, in_double_precision, small
from znn.codegen import target
from znn.graph.errors import IllTyped
from znn.graph.interpreter import interpret
from znn.graph.ir import Constant, check
from znn.graph.passes import stages
from znn.graph.passes.mixing import mix_channels
from znn.graph.passes.narrow import narrow
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
  let %b: f32[4, z, y - 2, x] = conv3d(%pool, @b, bias=@bias)
  let %c: f32[3, z, y - 2, x] = conv3d(%b, @c)
  let %joined: f32[7, z, y - 2, x] = concat(%c, %b)
  let %d: f32[4, z, y - 3, x] = conv3d(%joined, @d)
  let %e: f32[2, z, y - 3, x] = conv3d(%d, @e)
  return %e
}"""

AFTER = """\
fn net(%x: f32[2, z, y, x]) -> f32[2, z, y - 3, x] {
  const @a: f32[4, 2, 1, 1, 1]
  const @b: bf16[4, 4, 1, 2, 1]
  const @bias: f32[4]
  const @c: bf16[3, 4, 1, 1, 1]
  const @d: bf16[4, 7, 1, 2, 1]
  const @e: f32[2, 4, 1, 1, 1]
  let %a: bf16[4, z, y, x] = conv3d(%x, @a, activation="relu", result="bf16")
  let %pool: bf16[4, z, y - 1, x] = max_filter(%a, window=(1, 2, 1))
  let %b: f32[4, z, y - 2, x] = conv3d(%pool, @b, bias=@bias)
  let %b.cast: bf16[4, z, y - 2, x] = cast(%b, to="bf16")
  let %c: f32[3, z, y - 2, x] = conv3d(%b.cast, @c)
  let %joined: f32[7, z, y - 2, x] = concat(%c, %b)
  let %joined.cast: bf16[7, z, y - 2, x] = cast(%joined, to="bf16")
  let %d: f32[4, z, y - 3, x] = conv3d(%joined.cast, @d)
  let %e: f32[2, z, y - 3, x] = conv3d(%d, @e)
  return %e
}"""


def test_golden_text():
    """Three channels cannot stand before others in pairs: what is joined stays float32, and is cast."""
    made = check(narrow(parse(BEFORE), "bf16"))
    assert str(made) == AFTER and str(parse(AFTER)) == AFTER


def test_weights_that_an_outer_convolution_reads_too_stay_as_they_are():
    text = BEFORE.replace("@a: f32[4, 2", "@a: f32[2, 2").replace("%a: f32[4", "%a: f32[2").replace(
        "%pool: f32[4", "%pool: f32[2").replace("@b: f32[4, 4, 1, 2, 1]", "@b: f32[4, 2, 1, 2, 1]")
    text = text.replace("  let %b:", "  let %again: f32[2, z, y - 1, x] = conv3d(%pool, @a)\n  let %b:").replace(
        "conv3d(%pool, @b", "conv3d(%again, @b")
    made = check(narrow(parse(text), "bf16"))
    assert Constant("a", made.constants[0].type) == made.constants[0] and made.constants[0].type.dtype == "f32"
    assert "%again: bf16[2, z, y - 1, x] = conv3d(%pool, @a, result=\"bf16\")" in str(made)


@given(functions())
@settings(deadline=None, max_examples=60)
def test_the_meaning_stays_and_the_text_reads_back(function):
    made = check(stages(function, "bf16")["assign_precision"])
    assert parse(str(made), made.weights) == made and narrow(function, "bf16").params == function.params
    x = volume_for(function)
    assert np.array_equal(interpret(check(narrow(function, "bf16")), x), interpret(function, x))


MIXED = """fn net(%x: bf16[4, z, y, x]) -> f32[2, z, y, x - 2] {
  const @a: bf16[5, 4, 1, 1, 3]
  const @b: f32[5]
  const @c: f32[2, 5, 1, 1, 1]
  const @d: f32[2]
  let %a: f32[5, z, y, x - 2] = conv3d(%x, @a, bias=@b, activation="relu")
  let %c: f32[2, z, y, x - 2] = conv3d(%a, @c, bias=@d)
  return %c
}"""


def test_a_convolution_of_one_voxel_joins_the_narrow_one_before_it():
    function = parse(MIXED)
    made = check(mix_channels(function))
    assert str(made).splitlines()[5:-2] == [
        '  let %c: f32[2, z, y, x - 2] = conv3d(%x, @a, bias=@b, mix=@c, mix_bias=@d, activation="relu")']
    assert parse(str(made)) == made == mix_channels(made)


@pytest.mark.parametrize("changes", [
    [("bias=@d)", 'bias=@d, activation="relu")')], [("bf16", "f32")], [("f32[2,", "f32[5,"), ("f32[2]", "f32[5]")],
    [("-> f32[2,", "-> f32[7,"), ("return %c", "let %e: f32[7, z, y, x - 2] = concat(%a, %c)\n  return %e")]],
    ids=["activation", "not narrow", "many channels", "used twice"])
def test_other_convolutions_are_not_joined(changes):
    text = MIXED
    for change in changes:
        text = text.replace(*change)
    function = check(parse(text))
    assert mix_channels(function) == function


@pytest.mark.parametrize("old, new, said", [
    ("@m: f32[2, 5, 1, 1, 1]", "@m: f32[2, 4, 1, 1, 1]", "expected weights of one voxel for f32[5, z, y, x - 2]"),
    ("@m: f32[2, 5, 1, 1, 1]", "@m: f32[2, 5, 1, 1, 2]", "expected weights of one voxel"),
    ("@d: f32[2]", "@d: f32[3]", "expected a number for each of 2 channels"),
    ("mix=@m", "mix=@m, result=\"bf16\"", "expected weights of one voxel for bf16")])
def test_channels_that_cannot_be_mixed(old, new, said):
    text = str(mix_channels(parse(MIXED))).replace("@c", "@m")
    with pytest.raises(IllTyped, match=re.escape(said)):
        check(parse(text.replace(old, new)))


def rounded(x):
    return torch.from_numpy(np.float32(x)).bfloat16().double().numpy()


@given(functions(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_function_is_run_as_the_interpreter_does_with_rounded_values(function, on_vectors):
    """With convolutions that mix channels at once, and with two in their place."""
    made = stages(function, "bf16")["mix_channels"]
    with mock.patch.dict("os.environ", {"ZNN_MATRIX_UNIT": "off" if on_vectors else "on"}):
        check_run(made, volume_for(function).astype(np.float32), "bf16", rounded)


@pytest.mark.parametrize("name", target.available())
@pytest.mark.parametrize("network, options", NETWORKS)
def test_shipped_networks_are_close_to_double_precision(network, options, name):
    net, x = small(network, options)
    exact = in_double_precision(net, x)
    with target.use_target(name):
        found = znn.compile(net, "bf16")(x.numpy())
    apart = found - exact
    assert found.dtype == np.float32 and 1e-4 < np.sqrt((apart**2).mean()) / exact.std() < 0.06


def test_maps_between_take_half_the_memory():
    net = models.build("VD2D3D", {"recursive": True}).eval()
    whole, half = (znn.compile(net, precision).peak_bytes((12, 212, 212)) for precision in ("fp32", "bf16"))
    assert half < 0.6 * whole


def test_a_users_network_with_an_odd_number_of_maps():
    torch.manual_seed(0)
    net, x = Users().eval(), torch.randn(2, 2, 3, 30, 41)
    with torch.inference_mode():
        expected = net(x)
    found = znn.compile(net, "bf16")(x)
    assert found.shape == expected.shape and (found - expected).abs().max() < 0.02 * expected.abs().max()
