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
    matmul,
    points_forward,
    points_weights,
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
    ({"dims": (Dim("i", 3), *DIMS)}, "expected a name for each dimension, found i, i, j, k, l"),
    ({"out": Access("o", (("i", 1), ("j", 3), ("k", 9)))}, "o is addressed by k, which is summed over"),
    ({"out": ONE}, "a is not addressed by j, which is not summed over"),
    ({"b": Access("b", (("m", 2),))}, "b[2 m] is addressed by m, which is none of its dimensions i, j, k, l"),
    ({"guards": (Guard(Access("a", (("i", 1), ("k", -1))), 2), Guard(Access("a", (("i", 1), ("l", -1))), 2))},
     "a dimension stands in two guards"),
    ({"guards": (Guard(Access("a", (("i", 1), ("j", -1))), 2),)}, "must have one dimension that is summed over"),
    ({"guards": (Guard(Access("a", (("i", 1), ("k", -1), ("l", 1))), 2),)}, "must have one dimension that is summed"),
], ids=["extent", "twice", "out", "not out", "unknown", "shared", "no sum", "two sums"])
def test_what_is_no_contraction_is_refused(changes, reason):
    with pytest.raises(ValueError) as error:
        Contraction(**{"name": "c", "dims": DIMS, "out": OUT, "a": ONE, "b": ONE, **changes})
    assert reason in str(error.value)


def test_a_guard_shows_in_the_text():
    text = str(conv_backward_data(1, 1, 2, (2, 3, 1), (3, 9, 4), (1, 2, 1)))
    assert text.splitlines()[2:] == ["where 0 <= 1 z + -1 kz < 2", "where 0 <= 1 y + -2 ky < 5"]


LAYER, ZYX = (1, 2, 3, (1, 3, 2), (2, 5, 9)), "must be a tuple of three positive whole numbers (z, y, x), found "
COLUMNS = "columns must be a tuple of whole numbers (first, end) with 0 <= first < end <= 9, found "


@pytest.mark.parametrize("make, reason", [
    (lambda: conv_forward(0, *LAYER[1:]), "conv_forward: n must be a positive whole number, found 0"),
    (lambda: conv_forward(1, 2.0, *LAYER[2:]), "conv_forward: ci must be a positive whole number, found 2.0"),
    (lambda: conv_backward_data(1, 2, -3, *LAYER[3:]), "co must be a positive whole number, found -3"),
    (lambda: conv_forward(*LAYER[:3], (1, 0, 3), LAYER[4]), f"kernel {ZYX}(1, 0, 3)"),
    (lambda: conv_forward(*LAYER[:4], (5, 9)), f"extent {ZYX}(5, 9)"),
    (lambda: conv_forward(*LAYER[:4], 9), f"extent {ZYX}9"),
    (lambda: conv_forward(*LAYER, dilation=(1, -2, 1)), f"dilation {ZYX}(1, -2, 1)"),
    (lambda: conv_forward(*LAYER, stride=(1, 1, 0)), f"stride {ZYX}(1, 1, 0)"),
    (lambda: conv_backward_data(*LAYER, dilation=(0, 1, 1)), f"dilation {ZYX}(0, 1, 1)"),
    (lambda: conv_backward_weights(*LAYER, dilation=(1, 1, 1.5)), f"dilation {ZYX}(1, 1, 1.5)"),
    (lambda: conv_forward(*LAYER, columns=(4, 10)), f"conv_forward: {COLUMNS}(4, 10)"),
    (lambda: conv_forward(*LAYER, columns=(4, 4)), f"{COLUMNS}(4, 4)"),
    (lambda: conv_backward_data(*LAYER, columns=(-1, 4)), f"conv_backward_data: {COLUMNS}(-1, 4)"),
    (lambda: conv_backward_data(*LAYER, columns=4), f"{COLUMNS}4"),
    (lambda: conv_backward_data(*LAYER, taps=(1, 3)), "taps must be a tuple of whole numbers (first, end) with 0 <= "
                                                      "first < end <= 2, found (1, 3)"),
    (lambda: conv_backward_data(*LAYER, dilation=(1, 3, 1)), "extent (z, y, x) must be more than the kernel reaches, "
                                                             "(0, 6, 1), found (2, 5, 9): it is that of x"),
    (lambda: conv_backward_data(*LAYER, g_strides=(1, 1, 1)), "g_strides must be a tuple of five whole numbers"),
    (lambda: conv_backward_weights(*LAYER, g_strides=(9, 9, 9, -3, 1)), "none negative, found (9, 9, 9, -3, 1)"),
    (lambda: conv_backward_data(*LAYER, g_start=0), "g_start must be a whole number of at least 1, since the zeros "
                                                    "before its first row are read, found 0"),
    (lambda: conv_backward_weights(*LAYER, g_start=-1), "g_start must be a whole number of at least 0"),
    (lambda: matmul(3, 0, 2), "matmul: n must be a positive whole number, found 0"),
    (lambda: matmul(3, 2, "4"), "matmul: k must be a positive whole number, found '4'"),
    (lambda: points_forward(4, 1, 1, 3, (0, 9), 2, 12, 9), "v_pitch must be a whole number of at least 13, since the "
                                                           "last column's taps read so far, found 12"),
    (lambda: points_forward(4, 1, 1, 3, (0, 9), 2, 16, 8), "with 0 <= first < end <= 8, found (0, 9)"),
    (lambda: points_forward(4, 1, 1, 0, (0, 9), 2, 16, 9), "taps must be a positive whole number, found 0"),
    (lambda: points_weights(1, 1, 3, 2, 9, 1, 10, 9, 2), "v_pitch must be a whole number of at least 11"),
    (lambda: points_weights(1, 1, 3, 2, 9, 1, 11, 8, 2), "d_pitch must be a whole number of at least 9"),
    (lambda: points_weights(1, 1, 3, 2, 9, 1, 11, 9, 1), "held must be a whole number of at least 2"),
])
def test_constructors_refuse_numbers_that_mean_nothing(make, reason):
    with pytest.raises(ValueError) as error:
        make()
    assert reason in str(error.value)


def test_the_smallest_that_there_are():
    assert conv_backward_data(1, 1, 1, (2, 2, 2), (2, 2, 2)).points == 2 * 2 * 4
    assert points_forward(1, 1, 1, 3, (0, 1), 2, 5, 1).points == 3
    assert conv_backward_data(*LAYER, g_start=0, taps=(0, 1)).points == conv_backward_data(*LAYER).points // 2
    assert conv_forward(*map(np.int64, LAYER[:3]), *LAYER[3:]) == conv_forward(*LAYER)


def test_a_gradient_of_every_second_voxel(case):
    """Its neighbours along x lie two elements apart."""
    layer, _, dilation, (x, w, g) = case
    margin = padded(g, dilation[2] * (layer[3][2] - 1))
    apart = np.full((*margin.shape, 2), 99)
    apart[..., 0] = margin
    strides = tuple(s // apart.itemsize for s in apart.strides[:5])
    start = 2 * dilation[2] * (layer[3][2] - 1)
    make = lambda **more: conv_backward_data(*layer, x.shape[2:], dilation, **more)  # noqa: E731
    whole = computed(make(), x.shape, margin, w)
    for first, end in itertools.pairwise((0, 1, x.shape[4])):
        c = make(g_strides=strides, g_start=start, columns=(first, end))
        assert np.array_equal(computed(c, x.shape, apart, w)[..., first:end], whole[..., first:end])
