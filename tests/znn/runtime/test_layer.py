"""What layers say that they ask for, against what convolutions ask for when they compute."""
import numpy as np
import pytest

from znn.codegen import target
from znn.runtime import conv, database
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
    """Counted in multiplications: points do m + r - 1 for m rows of an output where the direct form does m r."""
    (co, ci, *taps), n = layer.w_shape, layer.x_shape[0]
    for which, rows in (("forward", layer.extent[1]), ("data", layer.x_shape[3]), ("weights", layer.extent[1])):
        asked = layer.requests(which, F32, target.TARGETS["avx512"])
        columns = layer.x_shape[4] if which == "data" else layer.extent[2]
        done = sum(times * request.contraction.points for request, times in asked.items())
        least = n * layer.extent[0] * taps[0] * taps[2] * ci * co * columns  # for a row at a point
        assert done % least == 0
        points = done // least
        m = next(m for m in range(2, 9)
                 if points == (m + taps[1] - 1) * sum(-(-len(range(p, rows, layer.dilation[1])) // m)
                                                      for p in range(layer.dilation[1])))
        assert {r.contraction.extents.get("p", m + taps[1] - 1) for r in asked} == {m + taps[1] - 1}
