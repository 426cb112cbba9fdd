"""A map computed block by block is the map computed in one piece, at the right place, whatever the sizes."""
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import models
import znn
from data import Roi, Volume, scale_map
from tests.znn.pipeline.tiny import PLACE, RESOLUTION, SHAPE, noise, tiny, whole
from znn.nn import Conv3d
from znn.pipeline.averaging import passes
from znn.pipeline.errors import BudgetTooSmall, CheckpointError, NonFiniteMap, PipelineError, UndefinedVolume
from znn.pipeline.inference import infer_array, infer_volume, run

TOLERANCE = 1e-5


def in_blocks(networks, image, *shapes, columns=100, prepare=None):
    work = passes(networks, image)
    group, = work[0].groups
    shapes = [tuple(map(min, shape, image.shape)) for shape in shapes]
    cut = {"blocks": {stage.name: shape for stage, shape in zip(group.stages, shapes)},
           "column": [min(columns * n, size) for n, size in zip(shapes[-1][1:], image.shape[1:])]}
    return run([dataclasses.replace(work[0], groups=[group.recut(cut)])], image, prepare=prepare).read()


def triples(low, high):
    return st.tuples(*[st.integers(low, high)] * 3)


@settings(max_examples=20, deadline=None)
@given(triples(2, 11), triples(1, 12), triples(1, 12), st.integers(1, 3), triples(1, 3), triples(1, 4), triples(1, 3))
def test_blocks_give_what_the_whole_gives(shape, block, other_block, columns, first, last, dilation):
    """Random sizes, most of them thinner or narrower than the field of view; both stages cut differently, in columns
    of one block or more."""
    networks = [tiny(1, first, last=last, dilation=dilation), tiny(2, last, last=first, dilation=dilation, seed=1)]
    image = Volume.from_array(noise(shape))
    try:
        znn.use_engine("torch")             # so many kernel shapes need not be compiled; the cutting is the same
        result = in_blocks(networks, image, block, other_block, columns=columns)
        expected = whole(networks, image.read())
    finally:
        znn.use_engine("znn")
    assert result.shape == shape and result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=TOLERANCE)


@pytest.mark.parametrize("prepare", [None, znn.compile], ids=["layers", "compiled"])
@pytest.mark.parametrize("shape, block", [((7, 61, 83), (4, 61, 50)), ((2, 5, 90), (1, 5, 47))])
def test_published_pair_in_blocks(shape, block, prepare):
    torch.manual_seed(0)
    networks = [models.build("VD2D"), models.build("VD2D3D", {"recursive": True})]
    with torch.no_grad():
        for network in networks:
            network.convx.weight *= 0.1         # untrained logits are large; keep the maps from saturating
    image = Volume.from_array(noise(shape))
    result = in_blocks(networks, image, block, block, prepare=prepare)
    expected = whole([network.eval() for network in networks], image.read())
    assert expected.std() > 0.01
    np.testing.assert_allclose(result, expected, atol=TOLERANCE)


@pytest.mark.parametrize("begin, end", [((0, 0, 0), (7, 61, 83)), ((2, 10, 20), (5, 30, 50)),
                                        ((0, 55, 70), (1, 61, 83))])
def test_a_region_is_cut_out_of_the_whole(begin, end):
    """Its context comes from beyond the region, and its place in the world is carried over."""
    networks, region = [tiny(), tiny(2, seed=1)], Roi.between(begin, end)
    image = Volume.from_array(noise(), RESOLUTION, PLACE)
    part = infer_volume(networks, image, region=region)
    np.testing.assert_allclose(part.read(), whole(networks, image.read())[region.slices], atol=TOLERANCE)
    assert part.resolution_zyx == RESOLUTION
    assert part.offset_zyx == pytest.approx([p + b * r for p, b, r in zip(PLACE, begin, RESOLUTION)])


def test_a_small_budget_makes_more_blocks_and_the_same_map():
    networks, image = [tiny(), tiny(2, seed=1)], Volume.from_array(noise())
    small = passes(networks, image, memory_budget=200_000)
    group, = small[0].groups
    assert group.nbytes <= 200_000 and len(group.columns()) > 1
    assert all(len(stage.blocks()) > 3 for stage in group.stages)
    np.testing.assert_allclose(run(small, image).read(), infer_array(networks, image.read()), atol=TOLERANCE)


def boundary_network(kernel, weights, bias, channels=1):
    """Logits 0 and a convolution: its boundary probability is the sigmoid of the latter."""
    network = Conv3d(channels, 2, kernel)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[1] = torch.as_tensor(weights, dtype=torch.float32)
        network.bias.copy_(torch.tensor([0.0, bias]))
    return network


def test_a_constant_network_gives_the_constant_everywhere():
    network = boundary_network((3, 8, 5), torch.zeros(1, 3, 8, 5), bias=1.25)
    result = in_blocks([network], Volume.from_array(noise()), (2, 17, 30))
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-1.25)), atol=1e-6)


@pytest.mark.parametrize("kernel", [(1, 1, 1), (3, 5, 7), (5, 1, 9)])
def test_an_identity_network_gives_back_the_input_where_it_was(kernel):
    weights = torch.zeros(1, *kernel)
    weights[0, kernel[0] // 2, kernel[1] // 2, kernel[2] // 2] = 1
    image = noise()
    result = in_blocks([boundary_network(kernel, weights, 0.0)], Volume.from_array(image), (2, 17, 30))
    np.testing.assert_allclose(np.log(result / (1 - result)), image, atol=1e-4)


@pytest.mark.parametrize("how", ["fixed", "stack"])
def test_the_second_stage_reads_the_scaled_map(how):
    first = tiny()
    stage_one = infer_array([first], noise())
    weights = torch.zeros(2, 1, 1, 1)
    weights[1] = 1
    result = infer_array([first, boundary_network(1, weights, 0.0, channels=2)], noise(), recursion_scaling=how)
    np.testing.assert_allclose(np.log(result / (1 - result)), scale_map(stage_one, how), atol=1e-5)


def test_dropout_is_off_and_modes_come_back():
    network = torch.nn.Sequential(tiny(), torch.nn.Dropout(0.9))
    network.train()
    network[0].eval()
    np.testing.assert_array_equal(infer_array([network], noise()), infer_array([network[0]], noise()))
    assert network[1].training and not network[0].training


def test_progress_tells_every_voxel_once():
    """Those of the earlier map as often as columns overlap there."""
    told, networks = [], [("a", tiny()), ("b", tiny(2))]
    infer_array(networks, noise(), memory_budget=300_000, progress=lambda *x: told.append(x))
    group, = passes(networks, Volume.from_array(noise()), memory_budget=300_000)[0].groups
    assert {stage: sum(n for s, n, _ in told if s == stage) for stage in "ab"} == group.voxels
    assert group.voxels["b"] == np.prod(SHAPE) < group.voxels["a"] and len(group.columns()) > 1
    assert len(told) > 6 and not any(kept for _, _, kept in told)


@pytest.mark.parametrize("networks, options, error, words", [
    ([], {}, CheckpointError, "at least one network"),
    ([models.build("VD2D3D", {"recursive": True})], {}, CheckpointError, "recursive network comes after"),
    ([tiny(), models.build("VD2D3D")], {}, CheckpointError, "expected a network of 2 input"),
    ([Conv3d(1, 3, 1)], {}, CheckpointError, "2 channels of logits"),
    ([tiny()], {"region": Roi((0, 0, 80), (7, 61, 4))}, UndefinedVolume, "inside 0"),
    ([tiny()], {"region": Roi((0, 0, 80), (7, 0, 3))}, UndefinedVolume, "at least one voxel"),
    ([tiny()], {"memory_budget": 1000}, BudgetTooSmall, "raise memory_budget_gb"),
    ([tiny()], {"recursion_scaling": "none"}, PipelineError, "fixed, stack"),
])
def test_what_cannot_be_done_is_said(networks, options, error, words):
    with pytest.raises(error, match=words):
        infer_array(networks, noise(), **options)


def test_an_axis_of_one_voxel_cannot_be_mirrored():
    image = noise((1, 20, 20))
    with pytest.raises(UndefinedVolume, match="along z, the volume has 1"):
        infer_array([tiny()], image)
    flat = tiny(first=(1, 3, 2), last=(1, 2, 3))
    np.testing.assert_allclose(infer_array([flat], image), whole([flat], image), atol=TOLERANCE)


def test_weights_that_are_not_finite_are_found_in_the_first_block():
    network = tiny()
    with torch.no_grad():
        network[2].bias[0] = float("nan")
    with pytest.raises(NonFiniteMap, match=r"stage 'stage1', block \(0, 0, 0\)"):
        infer_array([network], noise())


def test_running_out_of_memory_says_what_to_do():
    class Hungry(torch.nn.Module):
        field_of_view = (1, 1, 1)

        def forward(self, x):
            if x.device.type == "meta":
                return x
            raise MemoryError

    with pytest.raises(BudgetTooSmall, match=r"memory ran out.*lower memory_budget_gb"):
        infer_array([Hungry()], noise())
