"""Networks in integers: where samples are taken, what is noted there, and what is said of the change."""
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import znn
from data import Roi, Volume
from tests.znn.pipeline.test_inference import in_blocks
from tests.znn.pipeline.tiny import SHAPE, noise, whole
from znn.graph.calibration import Observer
from znn.nn import Conv3d, MaxFilter3d, ReLU
from znn.pipeline import calibration
from znn.pipeline.calibration import BLOCKS, EXTENT, Calibration, calibrate, sampled
from znn.pipeline.errors import PrecisionLost
from znn.pipeline.inference import infer_volume


def deep(channels=1, seed=0):
    """A network with convolutions between its first and its last."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(Conv3d(channels, 7, (1, 3, 3), activation=ReLU()), MaxFilter3d((1, 2, 2)),
                               Conv3d(7, 6, (2, 3, 3), (1, 2, 2), activation=ReLU()),
                               Conv3d(6, 5, (1, 2, 2), activation=ReLU()), Conv3d(5, 2, 1)).eval()


@given(st.tuples(*[st.integers(0, 50)] * 3), st.tuples(*[st.integers(1, 400)] * 3))
@settings(max_examples=50, deadline=None)
def test_samples_lie_in_the_region_and_spread_over_it(begin, shape):
    blocks = sampled(Roi(begin, shape))
    assert all(Roi(begin, shape).contains(b) and b.shape == tuple(map(min, shape, EXTENT)) for b in blocks)
    assert 1 <= len(set(blocks)) == len(blocks) <= BLOCKS
    if any(n > 4 * e for n, e in zip(shape, EXTENT)):
        assert len(blocks) == BLOCKS
    moved = sampled(Roi((0, 0, 0), shape))
    assert [b.shift(begin) for b in moved] == blocks, "places depend on the region alone"


def test_each_third_of_an_axis_is_sampled():
    found = np.array([b.begin for b in sampled(Roi((0, 0, 0), (100, 2000, 2000)))]) / [96, 1904, 1904]
    assert all({0, 1, 2} == set((3 * axis).astype(int)) for axis in found.T)


def test_what_is_noted_and_found(monkeypatch):
    monkeypatch.setattr(calibration, "EXTENT", SHAPE)  # one block, the volume
    networks, image = [("a", deep()), ("b", deep(2, seed=1))], Volume.from_array(noise())
    found = calibrate(networks, image)
    assert found.blocks == 1 and list(found.ranges) == ["a", "b"]
    exact = whole([net for _, net in networks], image.read())
    for name, inputs in ("a", [image.read()]), ("b", [image.read(), 2 * whole([networks[0][1]], image.read()) - 1]):
        net = dict(networks)[name]
        context = [(low, low) if low == high else (low, high) for low, high in margins(net, inputs)]
        observer = Observer(znn.compile(net))
        observer(np.stack([np.pad(i, context, mode="reflect") for i in inputs])[None])
        assert found.ranges[name].keys() == observer.ranges.keys() != set()
        for variable, largest in observer.ranges.items():
            np.testing.assert_allclose(found.ranges[name][variable], largest, rtol=1e-4)
    prepared = {net: found.compiled(name, net) for name, net in networks}
    apart = np.abs(infer_volume(networks, image, prepare=prepared.get).read() - exact)
    assert 1e-4 < apart.mean() < 0.01 and abs(apart.mean() - found.mean_difference) < 1e-6
    assert abs(apart.max() - found.largest_difference) < 1e-5
    assert Calibration(**json.loads(json.dumps(found.recorded()))) == found


def margins(net, inputs):
    fov = znn.nn.field_of_view(net, len(inputs))
    return [((f - 1) // 2, f - 1 - (f - 1) // 2) for f in fov]


def test_ranges_do_not_depend_on_blocks_and_the_map_hardly_does():
    """The first convolution is float32, whose last bit depends on the extent; it may tip a rounding."""
    networks, image = [("a", deep()), ("b", deep(2, seed=1))], Volume.from_array(noise())
    large, small = (calibrate(networks, image, memory_budget=budget) for budget in (1 << 30, 1 << 20))
    for name in large.ranges:
        for variable, largest in large.ranges[name].items():
            np.testing.assert_allclose(small.ranges[name][variable], largest, rtol=1e-5)
    prepare = {net: large.compiled(name, net) for name, net in networks}.get
    one, other = (in_blocks(networks, image, block, block, prepare=prepare) for block in (SHAPE, (3, 20, 31)))
    assert np.abs(one - other).max() < 0.02 and np.mean(one != other) < 0.02


def test_too_large_a_change_is_refused_with_the_mend():
    found = Calibration({}, 8, 0.0123, 0.5)
    assert str(found) == "int8: on 8 sampled blocks the map differs from float32 by 0.0123 on average, 0.500 at most"
    found.check(0.0123)
    with pytest.raises(PrecisionLost, match=r"expected at most 0.01 on average: say precision=bf16, or allow more with "
                                            "int8_tolerance="):
        found.check(0.01)
    with pytest.raises(PrecisionLost):
        Calibration({}, 8, float("nan"), 0.5).check(1)


def test_a_network_of_one_convolution_stays_as_it_is():
    found = calibrate([Conv3d(1, 2, (1, 3, 3))], Volume.from_array(noise()))
    assert found.ranges == {"stage1": {}} and found.largest_difference == 0
