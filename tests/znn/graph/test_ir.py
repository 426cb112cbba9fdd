"""Types, operators and text of the representation, and what it means."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from tests.znn.graph.functions import SIZES, functions, volume_for
from znn.graph.errors import GraphError, IllTyped, SyntaxMistake
from znn.graph.interpreter import interpret
from znn.graph.ir import Constant, Function, Let, Var, call, check, constant, let
from znn.graph.operators import OPERATORS
from znn.graph.text import parse
from znn.graph.types import Extent, TensorType, least_extents, parse_type, unify, volume

TEXT = """\
fn net(%x: f32[2, z, y, x]) -> f32[5, z - 1, y - 5, x - 5] {
  const @a.weight: f32[3, 2, 2, 3, 3]
  const @a.bias: f32[3]
  const @b.weight: f32[2, 2, 2, 5, 5]
  let %a: f32[3, z - 1, y - 4, x - 4] = conv3d(%x, @a.weight, bias=@a.bias, dilation=(1, 2, 2), activation="relu")
  let %b: f32[2, z - 1, y - 4, x - 4] = conv3d(%x, @b.weight, activation=(1.7159, 0.6666))
  let %c: f32[5, z - 1, y - 4, x - 4] = concat(%a, %b)
  let %d: f32[5, z - 1, y - 5, x - 5] = max_filter(%c, window=(1, 2, 2))
  return %d
}"""


def weights_of(text, seed=0):
    """Random values for the constants of a text."""
    rng = np.random.default_rng(seed)
    return {c.name: rng.standard_normal(c.type.shape).astype(np.float32) for c in parse(text).constants}


def test_golden_text_reads_back():
    assert str(parse(TEXT)) == TEXT


@given(functions())
@settings(deadline=None, max_examples=100)
def test_every_function_reads_back_from_its_text(function):
    read = parse(str(function), function.weights)
    assert read == function and str(read) == str(function)
    assert read.at(SIZES) == parse(str(function.at(SIZES)))


def test_meaning_is_that_of_torch_in_double_precision():
    f = parse(TEXT, weights_of(TEXT))
    x = np.random.default_rng(1).standard_normal((2, 3, 11, 13))
    w = {name: torch.from_numpy(array).double() for name, array in f.weights.items()}
    t = torch.from_numpy(x)[None]
    a = F.conv3d(t, w["a.weight"], w["a.bias"], dilation=(1, 2, 2)).relu()
    b = 1.7159 * torch.tanh(0.6666 * F.conv3d(t, w["b.weight"]))
    expected = F.max_pool3d(torch.cat([a, b], 1), (1, 2, 2), stride=1)
    assert np.allclose(interpret(f, x), expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("op, named, expected", [
    ("add", {}, [[[[2, -4, 6, 8]]], [[[2, 0, 0, 2]]]]),
    ("bias", {}, [[[[11, 8, 13, 14]]], [[[21, 20, 20, 21]]]]),
    ("scale", {}, [[[[10, -20, 30, 40]]], [[[20, 0, 0, 20]]]]),
    ("relu", {}, [[[[1, 0, 3, 4]]], [[[1, 0, 0, 1]]]]),
    ("channels", {"first": 1, "end": 2}, [[[[1, 0, 0, 1]]]]),
    ("crop", {"low": (0, 0, 1), "high": (0, 0, 2)}, [[[[-2]]], [[[0]]]]),
    ("concat", {}, [[[[1, -2, 3, 4]]], [[[1, 0, 0, 1]]]] * 2),
    ("max_filter", {"window": (1, 1, 2), "dilation": (1, 1, 2)}, [[[[3, 4]]], [[[1, 1]]]]),
    ("cast", {"to": "bf16"}, [[[[1, -2, 3, 4]]], [[[1, 0, 0, 1]]]]),
    ("cast", {"to": "u8", "zero": 128, "by": True}, [[[[138, 108, 158, 168]]], [[[148, 128, 128, 148]]]]),
])
def test_meaning_by_hand(op, named, expected):
    weights = {}
    numbers = constant(weights, "n", np.array([10.0, 20.0], np.float32))
    x = Var("x", volume("f32", 2))
    args = {"add": (x, x), "concat": (x, x), "bias": (x, numbers), "scale": (x, numbers)}.get(op, (x,))
    one = let("y", call(op, *args, **{k: numbers if k == "by" else v for k, v in named.items()}))
    array = np.array([[[[1, -2, 3, 4]]], [[[1, 0, 0, 1]]]], np.float32)
    assert np.array_equal(interpret(Function("one", (x,), (one,), one.var, weights), array), expected)


def test_what_is_tested_by_hand_and_against_torch_is_all_there_is():
    assert set(OPERATORS) == {"conv3d", "tanh", "add", "bias", "scale", "relu", "channels", "crop", "concat",
                              "max_filter", "cast"}


def test_extents():
    n = Extent("y", -3)
    assert str(n + 5) == "y + 2" and str(n + 3) == "y" and n - 1 == Extent("y", -4)
    t = TensorType("bf16", (24, Extent("z"), n, 7))
    assert str(t) == "bf16[24, z, y - 3, 7]" and parse_type(str(t)) == t
    assert t.at({"z": 2, "y": 10}).nbytes == 24 * 2 * 7 * 7 * 2
    assert TensorType("bf16", (3, 1, 1, 5)).nbytes == 4 * 5 * 2  # channels lie in pairs
    assert least_extents([t, t.like(n + 1)]) == {"z": 1, "y": 4}
    assert unify(t, (24, 2, 7, 7), "x") == {"z": 2, "y": 10}
    with pytest.raises(GraphError, match=r"x: expected bf16\[24, z, y - 3, 7\], found an array of shape \(24, 2, 7"):
        unify(t, (24, 2, 7, 8), "x")


def test_least_extents_are_the_field_of_view():
    assert parse(TEXT).least == {"z": 2, "y": 6, "x": 6}
    assert parse(TEXT).at({"z": 2, "y": 6, "x": 6}).result.type.shape == (5, 1, 1, 1)
    with pytest.raises(IllTyped, match=r"a \(conv3d\): expected at least 5 voxels along x, found f32\[2, 2, 6, 4\]: "
                                       "give the network an input no smaller"):
        parse(TEXT).at({"z": 2, "y": 6, "x": 4})


X, SMALL = Var("x", volume("f32", 3)), Var("s", TensorType("f32", (3, Extent("z"), Extent("y", -1), Extent("x"))))
W, B = Constant("w", TensorType("f32", (4, 2, 1, 3, 3))), Constant("b", TensorType("f32", (2,)))
HALF = Var("h", volume("bf16", 3))
BYTES, BY = Var("q", volume("u8", 3)), Constant("by", TensorType("f32", (3,)))
INTEGERS, THREE = (Constant("i", TensorType(dtype, (3, 3, 1, 1, 1))) for dtype in ("i8", "f32"))
WIDE = Constant("d", TensorType("f64", (4, 3, 1, 3, 3)))


@pytest.mark.parametrize("c, message", [
    (call("conv3d", X, W), r"expected an input of 2 channels, as its weights f32\[4, 2, 1, 3, 3\] have, found "
                           r"f32\[3, z, y, x\]: give this layer 3 input channels, or the one before it 2 maps"),
    (call("conv3d", X, B), r"expected weights \(out, in, kz, ky, kx\), found @b: f32\[2\]: reshape them"),
    (call("conv3d", W, W), "expected a volume"),
    (call("conv3d", X, WIDE), r"expected operands of one element type, found f32\[3, z, y, x\] and f64"),
    (call("bias", X, B), r"expected a number for each of 3 channels, found @b: f32\[2\]: give 3"),
    (call("scale", X, W), "expected a number for each channel, found @w"),
    (call("add", X, SMALL), r"expected two volumes of one type, found f32\[3, z, y, x\] and f32\[3, z, y - 1"),
    (call("concat", X, SMALL), "expected volumes of one extent"),
    (call("concat"), "expected one volume or more, found none"),
    (call("channels", X, first=1, end=4), "expected channels first < end within 0..3, found 1..4"),
    (call("channels", X), "expected channels first < end within 0..3, found 0..None"),
    (call("crop", X, low=(0, -1, 0)), r"expected low to be three integers \(z, y, x\) of at least 0, found \(0, -1, "),
    (call("max_filter", X, window=(2, 2)), "expected window to be three integers"),
    (call("tanh", X, a="one"), "expected an activation"),
    (call("cast", X, to="f8"), "expected to to be one of f64, f32, bf16, u8, i8, found 'f8'"),
    (call("concat", HALF, HALF), r"expected a multiple of 2 channels in all but the last volume, found bf16\[3, z, y"),
    (call("channels", HALF, first=1, end=3), "expected channels that begin and end at a multiple of 2, found 1..3"),
    (call("bias", HALF, Constant("b", TensorType("bf16", (3,)))), r"expected numbers of f32 for bf16\[3, z, y, x\]"),
    (call("conv3d", X, Constant("w", TensorType("f32", (3, 3, 1, 1, 1))), onto=HALF, result="bf16"),
     "expected a result of f32, as its sums are, to be added onto"),
    (call("conv3d", BYTES, THREE), r"expected weights of i8, found u8\[3, z, y, x\] and f32\[3, 3, 1, 1, 1\]"),
    (call("conv3d", BYTES, INTEGERS), r"expected factors for u8\[3, z, y, x\], found none: give a number for each"),
    (call("conv3d", X, THREE, factors=BY), r"expected no factors for f32\[3, z, y, x\], found @by: remove it"),
    (call("conv3d", BYTES, INTEGERS, factors=B), r"expected a number for each of 3 channels, found @b: f32\[2\]"),
    (call("conv3d", X, THREE, zero=1), r"expected zero within 0..0 for f32\[3, z, y, x\], found 1"),
    (call("conv3d", X, THREE, zero=256, result="u8"), r"expected zero within 0..255 for u8\[3, z, y, x\], found 256"),
    (call("cast", X, to="u8"), r"expected by for f32\[3, z, y, x\] and u8\[3, z, y, x\], found none: give a number"),
    (call("cast", X, by=BY, to="bf16"), r"expected no by for f32\[3, z, y, x\] and bf16\[3, z, y, x\], found @by"),
    (call("relu", BYTES), r"expected numbers that stand for themselves, found %q: u8\[3, z, y, x\]: cast them to f32"),
])
def test_a_type_error_names_the_layer_and_the_mend(c, message):
    with pytest.raises(IllTyped, match=rf"^conv2a \({c.op}\): {message}"):
        let("conv2a", c)


def test_an_onto_of_another_extent_is_refused():
    three = Constant("w", TensorType("f32", (3, 3, 1, 1, 1)))
    with pytest.raises(IllTyped, match=r"expected to be added onto f32\[3, z, y, x\], found f32\[3, z, y - 1, x\]"):
        let("v", call("conv3d", X, three, onto=SMALL))
    with pytest.raises(IllTyped, match='expected an activation "relu" or'):
        let("v", call("conv3d", X, three, activation="gelu"))


def test_check_refuses_what_is_bound_twice_or_nowhere_or_otherwise():
    a, b = let("a", call("relu", X)), let("b", call("relu", X))
    late = let("b", call("relu", a.var))
    with pytest.raises(IllTyped, match=r"a: expected one binding, found a second"):
        check(Function("f", (X,), (a, a), a.var))
    with pytest.raises(IllTyped, match="b: expected a variable bound before, found %a"):
        check(Function("f", (X,), (late, a), a.var))
    with pytest.raises(IllTyped, match="return: expected a variable bound before"):
        check(Function("f", (X,), (a,), b.var))
    with pytest.raises(IllTyped, match="a \\(relu\\): expected the declared type"):
        check(Function("f", (X,), (Let(Var("a", SMALL.type), a.call),), X))


@pytest.mark.parametrize("old, new, message", [
    ("fn net", "net", "expected `fn name"),
    ("= concat(", "= join(", "expected one of the operators conv3d, "),
    ("concat(%a, %b)", "concat(%a, %e)", "expected %e to be declared above"),
    ("(%c, window", "(%c, %c, window", r"expected max_filter\(x, window=, dilation=\), found 2 operands"),
    ("window=(1, 2, 2)", "size=(1, 2, 2)", "found size"),
    ("window=(1, 2, 2)", "window=(1, 2, two)", "expected a number, a tuple of numbers"),
    ("const @a.bias: f32[3]", "const @a.bias: f16[3]", "expected a type such as"),
    ("const @a.bias: f32[3]", "const @a.bias: f32[3?]", "expected an extent such as 24, y or y - 2, found '3\\?'"),
    ("const @a.bias: f32[3]", "const @a.weight: f32[3]", "expected @a.weight to be declared once"),
    ("return %d", "give %d", "expected `return %name`"),
    ("f32[5, z - 1, y - 5, x - 5] {", "f32[5, z, y, x] {", "expected the type of what is returned, f32"),
])
def test_texts_with_a_mistake_say_where(old, new, message):
    assert old in TEXT
    with pytest.raises(SyntaxMistake, match=message):
        parse(TEXT.replace(old, new, 1))


def test_constants_of_one_name_and_other_values_get_another_name():
    weights = {}
    ones, twos = np.ones(2, np.float32), np.full(2, 2, np.float32)
    names = [constant(weights, "c", v).name for v in (ones, ones, twos, twos)]
    assert names == ["c", "c", "c:2", "c:2"]
    with pytest.raises(GraphError, match="found float16: convert them"):
        constant(weights, "h", ones.astype(np.float16))


@given(functions(dtype="f64"))
@settings(deadline=None, max_examples=20)
def test_declared_shapes_are_those_of_the_values(function):
    assert interpret(function, volume_for(function)).shape == function.at(SIZES).result.type.shape
