import pickle

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import DataError, Roi, Volume, common_roi, write_volume
from data.errors import Mismatch, NotFinite, OutsideVolume
from data.volume import reflected

RESOLUTION, OFFSET = (40.0, 4.0, 3.5), (37.0, 911.0, 911.0)


def grey(shape=(7, 61, 83), seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture(params=["eager", "lazy"])
def volume(request, tmp_path):
    """The same stack in memory and in a file."""
    if request.param == "eager":
        return Volume.from_array(grey(), RESOLUTION, OFFSET)
    write_volume(tmp_path / "v.h5", {"volumes/raw": (grey(), {})}, RESOLUTION, OFFSET)
    return Volume.open(tmp_path / "v.h5")


def test_what_a_volume_says(volume):
    assert volume.shape == (7, 61, 83) and volume.dtype == np.uint8 and volume.roi == Roi((0, 0, 0), (7, 61, 83))
    assert volume.resolution_zyx == RESOLUTION and volume.offset_zyx == OFFSET
    assert volume.resolution_known and volume.offset_known


def test_reading(volume):
    roi = Roi((2, 5, 7), (3, 11, 13))
    np.testing.assert_array_equal(volume.read(roi), grey()[2:5, 5:16, 7:20])
    np.testing.assert_array_equal(volume.read(), grey())
    with pytest.raises(OutsideVolume, match=r"found \(2, 5, 7\)\.\.\(8, 16, 20\)"):
        volume.read(Roi((2, 5, 7), (6, 11, 13)))


def test_pickled_volume_reads_the_same(volume):
    volume.read(Roi((0, 0, 0), (1, 1, 1)))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(volume)).read(), grey())


def test_crop_is_a_view_with_its_place(volume):
    part = volume.crop(Roi((2, 5, 7), (3, 11, 13)))
    assert part.shape == (3, 11, 13)
    assert part.offset_zyx == (37.0 + 2 * 40, 911.0 + 5 * 4, 911.0 + 7 * 3.5)
    np.testing.assert_array_equal(part.crop(Roi((1, 1, 1), (2, 3, 4))).read(), grey()[3:5, 6:9, 8:12])
    np.testing.assert_array_equal(part.read_mirrored(Roi((-1, 0, 0), (1, 11, 13))), grey()[3:4, 5:16, 7:20])
    with pytest.raises(OutsideVolume):
        volume.crop(Roi((0, 0, 0), (8, 1, 1)))


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.integers(-9, 9)] * 3), st.tuples(*[st.integers(1, 12)] * 3), st.tuples(*[st.integers(1, 5)] * 3))
def test_mirroring_is_numpys_reflect(begin, shape, size):
    array = grey(size)
    low = [max(0, -b) for b in begin]
    high = [max(0, b + s - n) for b, s, n in zip(begin, shape, size)]
    padded = array
    for axis, pad in enumerate(zip(low, high)):
        widths = [(0, 0)] * 3
        widths[axis] = pad
        padded = np.pad(padded, widths, mode="reflect" if size[axis] > 1 else "edge")
    at = [b + v for b, v in zip(begin, low)]
    expected = padded[tuple(slice(a, a + s) for a, s in zip(at, shape))]
    np.testing.assert_array_equal(Volume.from_array(array).read_mirrored(Roi(begin, shape)), expected)


def test_mirroring_far_outside_goes_to_and_fro():
    assert reflected(-5, 8, 3).tolist() == [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]
    assert reflected(-3, 3, 1).tolist() == [0] * 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_reported_with_its_voxel(bad):
    array = np.zeros((3, 4, 5), np.float32)
    array[1, 2, 3] = bad
    volume = Volume.from_array(array, name="stack.h5:volumes/raw")
    with pytest.raises(NotFinite, match=r"stack\.h5:volumes/raw.*\(z, y, x\) = \(1, 2, 3\)"):
        volume.read(Roi((1, 1, 1), (2, 3, 4)))
    volume.read(Roi((0, 0, 0), (1, 4, 5)))


def test_pairing_by_offset():
    raw = Volume.from_array(grey(), RESOLUTION, OFFSET)
    labels = Volume.from_array(grey((4, 70, 20)), RESOLUTION, (37.0 + 2 * 40, 911.0 - 3 * 4, 911.0 + 70 * 3.5))
    in_raw, in_labels = common_roi(raw, labels)
    assert in_raw == Roi((2, 0, 70), (4, 61, 13)) and in_labels == Roi((0, 3, 0), (4, 61, 13))
    assert common_roi(labels, raw) == (in_labels, in_raw)


def test_pairing_without_attributes_needs_one_shape():
    same = Volume.from_array(grey())
    assert common_roi(same, same) == (same.roi, same.roi)
    with pytest.raises(Mismatch, match="attribute 'offset'"):
        common_roi(same, Volume.from_array(grey((7, 61, 82))))


def test_a_missing_resolution_is_the_others():
    raw = Volume.from_array(grey(), RESOLUTION, OFFSET)
    labels = Volume.from_array(grey((2, 3, 4)), None, (37.0 + 40, 911.0 + 4, 911.0 + 3.5))
    assert common_roi(raw, labels)[0] == Roi((1, 1, 1), (2, 3, 4))


@pytest.mark.parametrize("resolution, offset, message", [
    ((40.0, 4.0, 4.0), OFFSET, "expected one resolution"),
    (RESOLUTION, (37.0, 913.0, 911.0), r"whole voxels.*\(0\.0, 0\.5, 0\.0\) voxels"),
    (RESOLUTION, (37.0 + 280, 911.0, 911.0), "do not overlap"),
])
def test_pairs_that_do_not_fit(resolution, offset, message):
    with pytest.raises(Mismatch, match=message):
        common_roi(Volume.from_array(grey(), RESOLUTION, OFFSET), Volume.from_array(grey(), resolution, offset))


def test_micrometres_of_other_tools(tmp_path):
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["raw"] = grey()
        file["raw"].attrs["element_size_um"] = [0.04, 0.004, 0.0035]
    np.testing.assert_allclose(Volume.open(tmp_path / "v.h5", "raw").resolution_zyx, RESOLUTION)


@pytest.mark.parametrize("key, value", [("resolution", [4, 4]), ("resolution", [0, 4, 4]), ("resolution", "4 nm"),
                                        ("offset", [np.nan, 0, 0])])
def test_unusable_attributes(tmp_path, key, value):
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["raw"] = grey()
        file["raw"].attrs[key] = value
    with pytest.raises(DataError, match=rf"v\.h5:raw: attribute '{key}'"):
        Volume.open(tmp_path / "v.h5", "raw")
