"""What is summed: against plain loops, in parts against the whole, and what is refused."""
import itertools

import numpy as np
import pytest

from znn.loops import (
    Access,
    Contraction,
    Dim,
    Guard,
    Schedule,
    conv_backward_data,
    conv_backward_weights,
    conv_forward,
    interpret,
)


def computed(c, shape, a, b):
    """The contraction in any order."""
    schedule = Schedule.parse(", ".join(f"{d.name}:1" for d in c.dims))
    return interpret(c, schedule, np.zeros(int(np.prod(shape)), np.int64), a.ravel(), b.ravel()).reshape(shape)


def convolved(x, w, dilation):
    """Valid 3D convolution, tap by tap."""
    extent = [s - d * (k - 1) for s, d, k in zip(x.shape[2:], dilation, w.shape[2:])]
    y = np.zeros((x.shape[0], w.shape[0], *extent), np.int64)
    for taps in itertools.product(*map(range, w.shape[2:])):
        part = x[(..., *(slice(d * t, d * t + e) for d, t, e in zip(dilation, taps, extent)))]
        y += np.einsum("oi,nizyx->nozyx", w[(..., *taps)], part)
    return y


# The gradient is narrower than the dilation along y, along y and z, not at all, and taps meet it one at a time.
CASES = [((1, 2, 3), (1, 3, 2), (2, 9, 5), (1, 4, 2)), ((2, 1, 2), (3, 2, 3), (7, 6, 9), (3, 5, 1)),
         ((1, 3, 1), (2, 3, 3), (3, 7, 8), (1, 1, 2)), ((1, 1, 1), (1, 3, 1), (1, 15, 2), (1, 7, 1))]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    (n, ci, co), kernel, size, dilation = request.param
    rng = np.random.default_rng(0)
    extent = tuple(s - d * (k - 1) for s, d, k in zip(size, dilation, kernel))
    shapes = (n, ci, *size), (co, ci, *kernel), (n, co, *extent)
    return (n, ci, co, kernel), extent, dilation, [rng.integers(-9, 10, s) for s in shapes]


def padded(g, reach):
    return np.pad(g, [(0, 0)] * 4 + [(reach, reach)])


def test_forward_and_its_gradients(case):
    """<g, conv(x, w)> is linear in x and in w, with dx and dw as coefficients: exact for integers."""
    layer, extent, dilation, (x, w, g) = case
    y = convolved(x, w, dilation)
    assert np.array_equal(computed(conv_forward(*layer, extent, dilation), y.shape, x, w), y)
    dw = computed(conv_backward_weights(*layer, extent, dilation), w.shape, x, g)
    margin = padded(g, dilation[2] * (layer[3][2] - 1))
    dx = computed(conv_backward_data(*layer, x.shape[2:], dilation), x.shape, margin, w)
    for out, of, compute in ((dw, w, lambda e: convolved(x, e, dilation)),
                             (dx, x, lambda e: convolved(e, w, dilation))):
        for place in np.ndindex(of.shape):
            unit = np.zeros_like(of)
            unit[place] = 1
            assert out[place] == (g * compute(unit)).sum(), place


@pytest.mark.parametrize("cuts", [(0, 1), (0, 2, 3), (0, 1, 2, 3)], ids=str)
def test_columns_cover_a_row_in_parts(case, cuts):
    layer, extent, dilation, (x, w, g) = case
    reach = dilation[2] * (layer[3][2] - 1)
    for make, width, shape, (a, b) in (
            (lambda **k: conv_forward(*layer, extent, dilation, **k), extent[2], g.shape, (x, w)),
            (lambda **k: conv_backward_data(*layer, x.shape[2:], dilation, **k), x.shape[4], x.shape,
             (padded(g, reach), w))):
        ends = sorted({*(c for c in cuts if c < width), width})
        parts = [computed(make(columns=c), shape, a, b) for c in itertools.pairwise(ends)]
        for (first, end), part in zip(itertools.pairwise(ends), parts):
            assert not part[..., :first].any() and not part[..., end:].any()
        assert np.array_equal(sum(parts), computed(make(), shape, a, b))
        assert sum(make(columns=c).points for c in itertools.pairwise(ends)) == make().points


def test_taps_are_left_out_where_they_meet_zeros_alone(case):
    layer, extent, dilation, (x, w, g) = case
    taps, d = layer[3][2], dilation[2]
    a, make = padded(g, d * (taps - 1)), lambda **k: conv_backward_data(*layer, x.shape[2:], dilation, **k)
    parts = []
    for column in range(x.shape[4]):
        meets = [t for t in range(taps) if 0 <= column - d * t < extent[2]]
        if meets:
            c = make(columns=(column, column + 1), taps=(meets[0], meets[-1] + 1))
            parts.append(computed(c, x.shape, a, w))
    assert np.array_equal(sum(parts), computed(make(), x.shape, a, w))


def test_gradients_lie_anywhere_in_memory(case):
    layer, extent, dilation, (x, w, g) = case
    reach = dilation[2] * (layer[3][2] - 1)
    left, room = reach + 2, np.full((*g.shape[:3], extent[1] + 1, extent[2] + 2 * reach + 5), 0)
    room[..., extent[1], :] = 99  # below the rows anything may lie: guards do not let it in
    room[..., :extent[1], left:left + extent[2]] = g
    strides = tuple(s // room.itemsize for s in room.strides)
    dx = conv_backward_data(*layer, x.shape[2:], dilation, strides, left)
    dw = conv_backward_weights(*layer, extent, dilation, strides, left)
    assert np.array_equal(computed(dx, x.shape, room, w), computed(
        conv_backward_data(*layer, x.shape[2:], dilation), x.shape, padded(g, reach), w))
    assert np.array_equal(computed(dw, w.shape, x, room), computed(
        conv_backward_weights(*layer, extent, dilation), w.shape, x, g))


def test_points_are_the_taps_that_meet_the_gradient(case):
    layer, extent, dilation, (x, _, _) = case
    (n, ci, co, kernel), reach = layer, dilation[2] * (layer[3][2] - 1)
    meets = [sum(0 <= p - d * t < e for p in range(s) for t in range(k))
             for s, d, k, e in zip(x.shape[2:4], dilation, kernel, extent)]
    c = conv_backward_data(*layer, x.shape[2:], dilation)
    assert c.points == n * ci * co * np.prod(meets) * (extent[2] + reach) * kernel[2] and c.flops == 2 * c.points


DIMS = Dim("i", 3), Dim("j", 3), Dim("k", 2, True), Dim("l", 2, True)
OUT, ONE = Access("o", (("i", 3), ("j", 1))), Access("a", (("i", 1),))


@pytest.mark.parametrize("changes, reason", [
    ({"dims": (Dim("i", 0), *DIMS[1:])}, "dimension i has extent 0, expected at least 1"),
    ({"out": Access("o", (("i", 1), ("k", 3)))}, "o is addressed by k, which is summed over"),
    ({"guards": (Guard(Access("a", (("i", 1), ("k", -1))), 2), Guard(Access("a", (("i", 1), ("l", -1))), 2))},
     "a dimension stands in two guards"),
    ({"guards": (Guard(Access("a", (("i", 1), ("j", -1))), 2),)}, "must have one dimension that is summed over"),
    ({"guards": (Guard(Access("a", (("i", 1), ("k", -1), ("l", 1))), 2),)}, "must have one dimension that is summed"),
], ids=["extent", "out", "shared", "no sum", "two sums"])
def test_what_is_no_contraction_is_refused(changes, reason):
    with pytest.raises(ValueError) as error:
        Contraction(**{"name": "c", "dims": DIMS, "out": OUT, "a": ONE, "b": ONE, **changes})
    assert reason in str(error.value)


def test_a_guard_shows_in_the_text():
    text = str(conv_backward_data(1, 1, 2, (2, 3, 1), (3, 9, 4), (1, 2, 1)))
    assert text.splitlines()[2:] == ["where 0 <= 1 z + -1 kz < 2", "where 0 <= 1 y + -2 ky < 5"]
