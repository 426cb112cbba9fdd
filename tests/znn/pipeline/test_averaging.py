"""The mean over orientations against a plain loop in float64, and that the result turns with the volume."""
import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import znn
from data import Roi, Volume
from data.orientation import Orientation, oriented
from tests.znn.pipeline.tiny import PLACE, RESOLUTION, noise, tiny, whole
from znn.nn import Conv3d
from znn.pipeline.averaging import AVERAGES, ORIENTATIONS, passes
from znn.pipeline.errors import Interrupted, WrongSetting
from znn.pipeline.inference import infer_array, infer_volume
from znn.pipeline.output import BOUNDARY, infer_to_file
from znn.pipeline.partial import partial_path

SHAPE, SMALL = (5, 21, 26), 100_000
turns = st.builds(Orientation, st.tuples(*[st.booleans()] * 3), st.booleans())


@pytest.fixture(scope="module")
def networks():
    """Of even fields of view, which see further to one side: what a flip changes."""
    return [tiny(), tiny(2, seed=1)]


def naive(networks, image, averaging):
    """Turn, run all in one piece in float64, turn back, average; written out with numpy's own flips."""
    maps = []
    for z in (False, True)[:averaging // 8 or 1]:
        for k in range(4 if averaging > 1 else 1):
            for mirrored in (False, True)[:min(averaging, 2)]:
                x = image[::-1] if z else image
                x = np.rot90(x[:, :, ::-1] if mirrored else x, k, (1, 2))
                y = np.rot90(whole(networks, x, np.float64), -k, (1, 2))
                y = y[:, :, ::-1] if mirrored else y
                maps.append(y[::-1] if z else y)
    assert len(maps) == averaging
    return np.mean(maps, axis=0)


@given(turns, st.tuples(*[st.integers(1, 5)] * 3), st.data())
def test_a_turned_volume_is_the_turned_array(turn, shape, data):
    array = np.arange(np.prod(shape)).reshape(shape)
    begin = [data.draw(st.integers(0, n - 1)) for n in shape]
    roi = Roi.between(begin, [data.draw(st.integers(b + 1, n)) for b, n in zip(begin, shape)])
    volume, moved = oriented(Volume.from_array(array, RESOLUTION), turn), turn.move(roi, shape)
    np.testing.assert_array_equal(volume.read(), turn.apply(array))
    np.testing.assert_array_equal(volume.read(moved), turn.apply(array[roi.slices]))
    assert turn.back(moved, shape) == roi and volume.resolution_zyx == turn.swap(RESOLUTION)


def test_the_orientations_are_all_there_are():
    assert len(set(ORIENTATIONS)) == 16 == AVERAGES[-1] and ORIENTATIONS[0] == Orientation()
    assert not any(each.flip_zyx[0] for each in ORIENTATIONS[:8])


@pytest.mark.parametrize("averaging", AVERAGES)
def test_the_mean_is_that_of_a_plain_loop(networks, averaging):
    result = infer_array(networks, noise(SHAPE), averaging=averaging, memory_budget=200_000)
    assert result.dtype == np.float32
    try:
        znn.use_engine("torch")
        expected = naive(networks, noise(SHAPE), averaging)
    finally:
        znn.use_engine("znn")
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("how", ["fixed", "stack"])
def test_blocks_give_what_the_whole_gives(networks, how):
    options = {"averaging": 16, "recursion_scaling": how}
    work = passes(networks, Volume.from_array(noise(SHAPE)), memory_budget=SMALL, **options)
    assert all(len(stage.blocks()) > 3 for each in work for group in each.groups for stage in group.stages)
    np.testing.assert_allclose(infer_array(networks, noise(SHAPE), memory_budget=SMALL, **options),
                               infer_array(networks, noise(SHAPE), **options), atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(turns)
def test_the_mean_turns_with_the_volume(turn):
    networks, image = [tiny(), tiny(2, seed=1)], noise(SHAPE)
    np.testing.assert_allclose(infer_array(networks, turn.apply(image), averaging=16),
                               turn.apply(infer_array(networks, image, averaging=16)), atol=1e-5)


def test_a_network_that_turns_with_its_input_gives_the_same_map():
    network = Conv3d(1, 2, (3, 3, 3))
    with torch.no_grad():
        network.weight[:] = sum(torch.from_numpy(each.apply(network.weight.numpy())) for each in ORIENTATIONS) / 16
    once = infer_array([network], noise(SHAPE))
    assert once.std() > 0.01
    np.testing.assert_allclose(infer_array([network], noise(SHAPE), averaging=16), once, atol=1e-6)


def test_a_region_is_cut_out_of_the_whole(networks):
    image, region = Volume.from_array(noise(SHAPE), RESOLUTION, PLACE), Roi((1, 0, 9), (2, 8, 17))
    part = infer_volume(networks, image, region=region, averaging=16)
    np.testing.assert_allclose(part.read(), infer_array(networks, noise(SHAPE), averaging=16)[region.slices], atol=1e-5)
    assert part.offset_zyx == pytest.approx([p + b * r for p, b, r in zip(PLACE, region.begin, RESOLUTION)])


@pytest.mark.parametrize("blocks", [1, 25, 60])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, networks, blocks):
    """Also where a sum was written and not yet marked as done."""
    path, image, left = tmp_path / "map.h5", Volume.from_array(noise(SHAPE)), blocks
    options = {"memory_budget": SMALL, "averaging": 8}

    def stop(stage, voxels, kept):
        nonlocal left
        left -= stage == "stage2" and not kept
        if left == 0:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, {}, progress=stop, **options)
    with h5py.File(partial_path(path), "r+") as file:
        done = next(marks for marks in (file[f"{n}/stage2/done"] for n in range(8)) if not marks[()].all())
        done[0] = 0
    told, work = [], passes(networks, image, **options)
    infer_to_file(networks, image, path, {}, progress=lambda *each: told.append(each), **options)
    computed, planned = (sum(each) for each in (
        (stage == "stage2" and not kept for stage, _, kept in told),
        (len(each.groups[0].last.blocks()) for each in work)))
    assert computed - planned + blocks in (0, 1)
    assert sum(voxels for stage, voxels, _ in told if stage == "stage2") == 8 * np.prod(SHAPE)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file[BOUNDARY][()], infer_volume(networks, image, **options).read())


def test_another_number_of_orientations_is_refused(networks):
    with pytest.raises(WrongSetting, match="averaging: expected one of 1, 8, 16, found 4"):
        infer_array(networks, noise(SHAPE), averaging=4)
