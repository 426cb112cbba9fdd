"""What layers say that they ask for, against what convolutions ask for when they compute."""
import math

import numpy as np
import pytest

from znn.codegen import target
from znn.runtime import conv, database, winograd_choice
from znn.runtime.layer import PASSES, Layer
from znn.runtime.request import Request

F32 = np.dtype(np.float32)
LAYERS = {
    "direct": Layer((1, 3, 2, 9, 41), (5, 3, 1, 1, 3), (1, 1, 2), activation="relu"),
    "two parts of a row": Layer((2, 3, 1, 8, 18), (40, 3, 1, 2, 2), bias=False),
    "at points": Layer((1, 24, 2, 40, 45), (30, 24, 1, 3, 3), (1, 2, 2)),
    "at points in 3D": Layer((2, 16, 5, 30, 90), (24, 16, 2, 3, 3), activation=(1.7, 0.6)),
}


@pytest.fixture
def asked(monkeypatch):
    """What was asked for, without what follows the sum: that is measured on one of a few."""
    found = []
    kernel = Request.kernel
    monkeypatch.setattr(Request, "kernel", lambda self: found.append(self) or kernel(self))
    database.forget()
    yield found
    database.forget()


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_asks_for_what_its_passes_do(layer, points, asked, monkeypatch):
    monkeypatch.setenv("ZNN_WINOGRAD", "1" if points else "0")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, F32) for s in (layer.x_shape, layer.w_shape))
    bias = rng.standard_normal(w.shape[0], F32) if layer.bias else None
    y = conv.forward(x, w, bias, layer.dilation, layer.activation)
    assert y.shape[2:] == layer.extent
    computed = {"forward": list(asked)}
    g, left, _ = conv.prepared(np.ones_like(y), None, None, layer.dilation[2] * (w.shape[4] - 1))
    asked.clear()
    conv.backward_data(x.shape, w, g, left, y.shape, layer.dilation)
    computed["data"] = list(asked)
    asked.clear()
    conv.backward_weights(x, w.shape, g, left, y.shape, layer.dilation)
    computed["weights"] = list(asked)
    for which in PASSES:
        said = layer.requests(which, F32, target.current())
        assert {r.contraction for r in said} == {r.contraction for r in computed[which]}
        for request in said:
            twins = [r for r in computed[which] if r.contraction == request.contraction]
            assert request in twins and all(r.default() == request.default() for r in twins)
        assert points or said == layer.requests(which, F32, target.current(), points=False)


def test_the_layers_cover_both_forms_and_rows_in_parts():
    names = {key: [r.contraction.name for which in PASSES for r in layer.requests(which, F32, target.TARGETS["avx512"])]
             for key, layer in LAYERS.items()}
    assert not any(n.startswith("points") for n in names["direct"])
    assert names["two parts of a row"].count("conv_forward") == 2
    assert {"points_forward", "points_weights"} == set(names["at points in 3D"])


def test_a_gradient_with_more_zeros_has_other_strides():
    layer = LAYERS["direct"]
    wider = Layer(layer.x_shape, layer.w_shape, layer.dilation, reach=40)
    for which in ("data", "weights"):
        own, other = (one.requests(which, F32, target.TARGETS["avx512"]) for one in (layer, wider))
        assert [r.contraction for r in own] != [r.contraction for r in other]


@pytest.mark.parametrize("layer", [LAYERS["at points"], LAYERS["at points in 3D"]])
def test_how_often_a_pass_runs_what_it_asks_for(layer):
    """Counted in multiplications: points do m + r - 1 for m outputs of r taps where the direct form does m r."""
    (co, ci, *taps), n, d = layer.w_shape, layer.x_shape[0], layer.dilation
    for which in PASSES:
        where = target.TARGETS["avx512"]
        asked = layer.requests(which, F32, where)
        extent, channels = (layer.x_shape[2:], (co, ci)) if which == "data" else (layer.extent, (ci, co))
        choose = winograd_choice.rows_form if which == "weights" else winograd_choice.form
        m = choose(extent, *channels, taps, d, where.lanes(F32))
        done = sum(times * request.contraction.points for request, times in asked.items())
        if which == "weights":
            rows = sum(-(-len(range(p, extent[1], d[1])) // m) for p in range(d[1]))
            assert done == n * layer.extent[0] * taps[0] * taps[2] * ci * co * extent[2] * rows * (m + taps[1] - 1)
            continue
        tiles = math.prod(sum(-(-len(range(p, e, step)) // size) for p in range(step))
                          for e, step, size in zip(extent[1:], d[1:], m))
        points = math.prod(size + t - 1 for size, t in zip(m, taps[1:]))
        assert {r.contraction.extents["p"] for r in asked} == {points}
        lanes, rest = divmod(done, n * layer.extent[0] * taps[0] * ci * co * points)
        assert rest == 0 and tiles <= lanes < 1.25 * tiles + 16  # vectors that are not full
