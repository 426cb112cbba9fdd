"""Passes: what each makes of a text, and that the meaning stays."""
import numpy as np
import pytest
from hypothesis import given, settings

import models
from tests.znn.graph.functions import functions, volume_for
from znn.graph.errors import GraphError
from znn.graph.interpreter import interpret
from znn.graph.ir import check
from znn.graph.passes import PASSES, stages
from znn.graph.passes.precision import assign_precision
from znn.graph.passes.tidy import remove_unused
from znn.graph.text import parse
from znn.graph.trace import trace

# For each pass texts before and after; "->" between them. The types of shorthand are put in by `texts`.
GOLDEN = {
    "merge_equal": ["""
        let %a: V2 = relu(%x)
        let %b: V2 = relu(%x)
        let %c: V2 = bias(%a, @b2)
        let %d: V2 = bias(%b, @b2)
        let %e: V2 = add(%c, %d)
        return %e
        ->
        let %a: V2 = relu(%x)
        let %c: V2 = bias(%a, @b2)
        let %e: V2 = add(%c, %c)
        return %e"""],
    "fold_constants": ["""
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = bias(%a, @b3)
        let %c: V3 = scale(%b, @s3)
        return %c
        ->
        let %c.scale: V3 = conv3d(%x, @w32:2)
        let %c: V3 = bias(%c.scale, @b3:2)
        return %c""", """
        let %a: V2 = scale(%x, @s2)
        let %b: V2 = bias(%a, @b2)
        let %c: V3 = conv3d(%b, @w32, bias=@b3)
        return %c
        ->
        let %c.conv3d: V3 = conv3d(%x, @w32:2)
        let %c: V3 = bias(%c.conv3d, @c.bias)
        return %c""", """
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = bias(%a, @b3)
        let %c: V3 = conv3d(%x, @v32)
        let %d: V3 = bias(%c, @s3)
        let %e: V3 = add(%b, %d)
        let %f: V3 = scale(%e, @s3)
        let %g: V3 = scale(%f, @s3)
        return %g
        ->
        let %g.scale:3: V3 = conv3d(%x, @w32:2)
        let %g.scale:4: V3 = conv3d(%x, @v32:2)
        let %g.scale:2: V3 = add(%g.scale:3, %g.scale:4)
        let %g: V3 = bias(%g.scale:2, @b3:3)
        return %g""", """
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = scale(%a, @s3)
        let %c: V3 = add(%a, %b)
        return %c
        ->
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = scale(%a, @s3)
        let %c: V3 = add(%a, %b)
        return %c""", """
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = relu(%a)
        let %c: V3 = conv3d(%x, @v32)
        let %d: V3 = add(%b, %c)
        let %e: V3 = scale(%d, @s3)
        return %e
        ->
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = relu(%a)
        let %c: V3 = conv3d(%x, @v32)
        let %d: V3 = add(%b, %c)
        let %e: V3 = scale(%d, @s3)
        return %e"""],
    "pool_last": ["""
        let %a: P2 = max_filter(%x, window=(1, 2, 1))
        let %b: P2 = bias(%a, @b2)
        let %c: P2 = tanh(%b, a=1.7159, b=0.6666)
        return %c
        ->
        let %b.bias: V2 = bias(%x, @b2)
        let %c.tanh: V2 = tanh(%b.bias, a=1.7159, b=0.6666)
        let %c: P2 = max_filter(%c.tanh, window=(1, 2, 1))
        return %c""", """
        let %a: P2 = max_filter(%x, window=(1, 2, 1))
        let %b: P2 = tanh(%a, a=-1.0)
        return %b
        ->
        let %a: P2 = max_filter(%x, window=(1, 2, 1))
        let %b: P2 = tanh(%a, a=-1.0)
        return %b"""],
    "join_sums": ["""
        let %a: V2 = relu(%x)
        let %b: V2 = tanh(%x)
        let %c: V3 = conv3d(%a, @w32)
        let %d: V3 = conv3d(%b, @v32)
        let %e: V3 = add(%c, %d)
        return %e
        ->
        let %a: V2 = relu(%x)
        let %b: V2 = tanh(%x)
        let %e.concat: V4 = concat(%a, %b)
        let %e: V3 = conv3d(%e.concat, @e.weight)
        return %e""", """
        let %c: V3 = conv3d(%x, @w32)
        let %d: V3 = conv3d(%x, @v32)
        let %e: V3 = add(%c, %d)
        return %e
        ->
        let %e: V3 = conv3d(%x, @e.weight)
        return %e""", """
        let %a: V2 = relu(%x)
        let %c: V3 = conv3d(%x, @w32)
        let %d: V3 = conv3d(%a, @v32)
        let %e: V3 = add(%c, %d)
        let %f: V3 = conv3d(%a, @k32)
        let %g: V3 = add(%e, %f)
        return %g
        ->
        let %a: V2 = relu(%x)
        let %c: V3 = conv3d(%x, @w32)
        let %d: V3 = conv3d(%a, @v32)
        let %e: V3 = add(%c, %d)
        let %f: V3 = conv3d(%a, @k32)
        let %g: V3 = add(%e, %f)
        return %g""", """
        let %a: V2 = relu(%x)
        let %b: V4 = concat(%a, %x)
        let %c: V6 = concat(%b, %a)
        return %c
        ->
        let %a: V2 = relu(%x)
        let %c: V6 = concat(%a, %x, %a)
        return %c"""],
    "fuse": ["""
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = conv3d(%x, @k32)
        let %c: V3 = add(%a, %b)
        let %d: V3 = bias(%c, @b3)
        let %e: V3 = relu(%d)
        return %e
        ->
        let %a: V3 = conv3d(%x, @w32)
        let %e: V3 = conv3d(%x, @k32, bias=@b3, onto=%a, activation="relu")
        return %e""", """
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = tanh(%a, a=1.7159, b=0.6666)
        let %c: V3 = bias(%a, @b3)
        let %d: V3 = add(%b, %c)
        return %d
        ->
        let %a: V3 = conv3d(%x, @w32)
        let %b: V3 = tanh(%a, a=1.7159, b=0.6666)
        let %c: V3 = bias(%a, @b3)
        let %d: V3 = add(%b, %c)
        return %d"""],
}
CONSTANTS = {"w32": "f64[3, 2, 1, 1, 1]", "v32": "f64[3, 2, 1, 1, 1]", "k32": "f64[3, 2, 1, 1, 1]",
             "b2": "f64[2]", "s2": "f64[2]", "b3": "f64[3]", "s3": "f64[3]"}


def function_of(lines, weights):
    """The function of the lets and the return of a golden text."""
    lines = [line.strip() for line in lines.strip().splitlines()]
    for n in "23456":
        lines = [line.replace(f": V{n} ", f": f64[{n}, z, y, x] ").replace(f": P{n} ", f": f64[{n}, z, y - 1, x] ")
                 for line in lines]
    declared = {"x": "f64[2, z, y, x]", **{line.split(":")[0][5:]: line.split(": ")[1].split(" = ")[0]
                                           for line in lines[:-1]}}
    result = declared[lines[-1].removeprefix("return %")]
    consts = [f"const @{name}: {kind}" for name, kind in CONSTANTS.items() if name in weights]
    return parse("\n".join([f"fn net(%x: f64[2, z, y, x]) -> {result} {{", *consts, *lines, "}"]), weights)


def weights_of(text):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal([int(n) for n in kind[4:-1].split(",")]) for name, kind in CONSTANTS.items()}


@pytest.mark.parametrize("name, text", [(name, text) for name, texts in GOLDEN.items() for text in texts])
def test_golden_texts(name, text):
    before, after = text.split("->")
    function = function_of(before, weights_of(text))
    made = check(PASSES[name](function))
    lets = "\n".join(str(made).splitlines()[1 + len(made.constants):-1])
    for n in "23456":
        lets = lets.replace(f"f64[{n}, z, y, x]", f"V{n}").replace(f"f64[{n}, z, y - 1, x]", f"P{n}")
    assert [line.strip() for line in lets.splitlines()] == [line.strip() for line in after.strip().splitlines()]
    x = volume_for(function)
    assert np.allclose(interpret(made, x), interpret(function, x), rtol=0, atol=1e-11)
    assert set(made.weights) == {c.name for c in made.constants}


@pytest.mark.parametrize("name", PASSES)
@given(function=functions(dtype="f64"))
@settings(deadline=None, max_examples=40)
def test_a_pass_keeps_the_meaning_and_its_argument(name, function):
    text = str(function)
    made = check(PASSES[name](function))
    assert str(function) == text and PASSES[name](made) == made
    x = volume_for(function)
    expected = interpret(function, x)
    assert np.allclose(interpret(made, x), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@given(function=functions(dtype="f64", most=6))
@settings(deadline=None, max_examples=40)
def test_all_passes_together_keep_the_meaning(function):
    made = stages(function, "fp64")["assign_precision"]
    x = volume_for(function)
    expected = interpret(function, x)
    assert np.allclose(interpret(made, x), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("name, options, calls", [
    ("N4", {"activation": "tanh"}, ["conv3d", "max_filter"] * 4 + ["conv3d"] * 2),
    ("VD2D3D", {"recursive": True}, ["channels", "conv3d", "conv3d"] * 2 + ["concat", "conv3d", "max_filter"] +
     ["conv3d", "conv3d", "max_filter"] * 2 + ["conv3d"] * 4),
])
def test_what_a_shipped_network_comes_to(name, options, calls):
    function = stages(trace(models.build(name, options)))["assign_precision"]
    assert [each.call.op for each in function.lets] == calls


def test_a_pass_can_be_left_out():
    function = trace(models.VD2D3D(recursive=True))
    assert list(stages(function, without=["join_sums"])) == [
        "trace", "merge_equal", "fold_constants", "pool_last", "fuse", "assign_precision", "mix_channels"]
    made = stages(function, without=["join_sums"])["assign_precision"]
    assert made.definitions["conv1c"]["onto"] == made.lets[6].var
    with pytest.raises(GraphError, match=r"without: expected passes among merge_equal, .*found 'fusion'"):
        stages(function, without=["fusion"])


def test_precision_is_that_of_all_values_and_weights():
    function = trace(models.N4())
    made = check(assign_precision(function, "fp64"))
    assert "f32" not in str(made) and all(w.dtype == np.float64 for w in made.weights.values())
    assert assign_precision(made, "fp32") == function
    with pytest.raises(GraphError, match="precision: expected one of fp32, fp64, bf16, int8, found 'fp8'"):
        assign_precision(function, "fp8")


def test_what_is_unused_goes_with_its_weights():
    weights = weights_of("")
    function = function_of("let %a: V2 = bias(%x, @b2)\nlet %b: V2 = relu(%x)\nreturn %b", weights)
    made = remove_unused(function)
    assert [each.var.name for each in made.lets] == ["b"] and not made.weights and len(weights) == len(CONSTANTS)
