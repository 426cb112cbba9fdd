"""The memory plan: buffers in use together never overlap, values that share do so where it is right."""
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from tests.znn.graph.functions import SIZES, functions
from znn.graph.memory import LINE, Buffer, arrange, largest_live, plan, workspace
from znn.graph.passes import stages
from znn.graph.text import parse
from znn.graph.trace import trace

LIVES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 9)), max_size=25)


def assert_apart(buffers, offsets):
    for a, b in itertools.combinations(buffers, 2):
        if a.meets(b) and a.size and b.size:
            i, j = offsets[a.name], offsets[b.name]
            assert i + a.size <= j or j + b.size <= i


@given(LIVES)
def test_buffers_in_use_together_never_overlap(lives):
    buffers = [Buffer(str(i), size, first, first + length) for i, (size, first, length) in enumerate(lives)]
    offsets, peak = arrange(buffers)
    assert_apart(buffers, offsets)
    assert all(o % LINE == 0 for o in offsets.values())
    assert largest_live(buffers) <= peak <= sum(-(-b.size // LINE) * LINE for b in buffers)
    assert all(offsets[b.name] + b.size <= peak for b in buffers)


def test_a_chain_takes_the_memory_of_its_two_largest_neighbours():
    chain = [Buffer(str(i), 64 * n, i, i + 1) for i, n in enumerate([5, 9, 7, 3, 1])]
    assert arrange(chain)[1] == 64 * 16 == largest_live(chain)


@given(functions(), st.integers(0, 3000))
@settings(deadline=None, max_examples=100)
def test_values_of_a_function_are_whole_until_their_last_use(function, extra):
    """Each byte is followed through the run: who reads a value finds that nobody has written there since."""
    function = function.at(SIZES)
    made = plan(function, {function.lets[0].var.name: extra})
    assert_apart(made.buffers, made.offsets)
    owner = {}  # of parts of memory: (root, begin, end) of the value written last

    def place(var):
        root, offset = made.homes[var.name]
        return root, made.offsets.get(root, 0) + offset, made.offsets.get(root, 0) + offset + var.type.nbytes

    def space(root):
        return "arena" if root in made.offsets else root

    def write(var):
        root, begin, end = place(var)
        for other in [o for o in owner if o != var.name]:
            r, b, e = owner[other]
            if space(r) == space(root) and b < end and begin < e:
                del owner[other]
        owner[var.name] = root, begin, end

    written = {function.params[0].name}
    owner[function.params[0].name] = place(function.params[0])
    for each in function.lets:
        for v in each.call.variables:
            assert v.name in owner, f"{v} was overwritten before {each.var}"
        shares = {v.name for v in each.call.variables if place(v)[0] == place(each.var)[0]}
        if each.call.op in ("concat", "channels"):
            owner[each.var.name] = place(each.var)  # nothing is written where the parts are already
        else:
            kept = {n: o for n, o in owner.items() if n in shares}
            write(each.var)
            assert all(n in owner or kept[n] == place(each.var) for n in kept)
        written.add(each.var.name)
    assert function.result.name in owner


TEXT = """\
fn net(%x: f32[2, 1, 8, 32]) -> f32[4, 1, 8, 32] {
  const @w: f32[2, 1, 1, 1, 1]
  const @v: f32[2, 4, 1, 1, 1]
  const @u: f32[4, 2, 1, 1, 1]
  let %c: f32[1, 1, 8, 32] = channels(%x, first=1, end=2)
  let %a: f32[2, 1, 8, 32] = conv3d(%c, @w)
  let %b: f32[2, 1, 8, 32] = relu(%a)
  let %d: f32[2, 1, 8, 32] = tanh(%x)
  let %e: f32[4, 1, 8, 32] = concat(%b, %d)
  let %f: f32[2, 1, 8, 32] = conv3d(%e, @v)
  let %g: f32[2, 1, 8, 32] = conv3d(%e, @v, onto=%f)
  let %h: f32[4, 1, 8, 32] = conv3d(%g, @u)
  return %h
}"""


def test_who_shares_with_whom():
    made = plan(parse(TEXT), {"h": 100})
    assert made.homes == {"x": ("x", 0), "c": ("x", 1024), "a": ("e", 0), "b": ("e", 0), "d": ("e", 2048),
                          "e": ("e", 0), "f": ("g", 0), "g": ("g", 0), "h": ("h", 0)}
    assert {(b.name, b.size, b.first, b.last) for b in made.buffers} == {
        ("e", 4096, 1, 6), ("g", 2048, 5, 7), (workspace("h"), 100, 7, 7)}
    assert made.peak == 4096 + 2048


def test_what_is_needed_later_is_not_overwritten():
    later = TEXT.replace("conv3d(%g, @u)", "conv3d(%b, @u)")  # b lies in e, which must now live on
    life = {b.name: b.last for b in plan(parse(later)).buffers}
    assert life["e"] == 7
    kept = TEXT.replace("let %g: f32[2, 1, 8, 32] = conv3d(%e, @v, onto=%f)", "let %g: f32[2, 1, 8, 32] = add(%f, %b)")
    assert plan(parse(kept)).homes["f"] == ("g", 0) and plan(parse(kept)).homes["b"] == ("e", 0)
    twice = TEXT.replace("relu(%a)", "add(%a, %a)")
    assert plan(parse(twice)).homes["a"] == ("a", 0)


def test_both_streams_of_the_recursive_network_are_written_side_by_side():
    function = stages(trace(models.VD2D3D(recursive=True)))["assign_precision"].at({"z": 5, "y": 90, "x": 95})
    made = plan(function)
    joined = function.definitions["conv1c"]["x"].name
    assert made.homes["conv1b"] == (joined, 0) and made.homes["conv1b_r"] == (joined, 24 * 5 * 86 * 91 * 4)
    assert made.homes["convx"] == ("convx", 0) and "convx" not in made.offsets


@pytest.mark.parametrize("name, options", [("N4", {}), ("VD2D", {}), ("VD2D3D", {}), ("VD2D3D", {"recursive": True})])
@pytest.mark.parametrize("further", [(0, 0, 0), (7, 127, 127), (0, 399, 299)], ids=str)
def test_shipped_networks_take_no_more_than_their_worst_step_needs(name, options, further):
    net = models.build(name, options)
    extents = (f + n for f, n in zip(net.field_of_view, further))
    made = plan(stages(trace(net))["assign_precision"].at(dict(zip("zyx", extents))))
    assert made.peak == largest_live(made.buffers)
