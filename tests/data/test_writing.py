import h5py
import numpy as np
import pytest

from data import Volume, write_volume
from data.errors import NotWritable

RESOLUTION, OFFSET = (40.0, 4.0, 3.5), (37.0, 911.0, 911.0)


def test_round_trip_with_attributes(tmp_path):
    array = np.random.default_rng(0).random((7, 61, 83)).astype(np.float32)
    path = tmp_path / "v.h5"
    write_volume(path, {"volumes/a": (array, {"note": "x"}), "volumes/b": (array > 0.5, {"offset": (0.0, 0.0, 0.0)})},
                 RESOLUTION, OFFSET, {"file_format": "0.2"})
    a, b = Volume.open(path, "volumes/a"), Volume.open(path, "volumes/b")
    np.testing.assert_array_equal(a.read(), array)
    np.testing.assert_array_equal(b.read(), array > 0.5)
    assert a.resolution_zyx == b.resolution_zyx == RESOLUTION and a.offset_zyx == OFFSET and b.offset_zyx == (0, 0, 0)
    with h5py.File(path) as file:
        assert file.attrs["file_format"] == "0.2" and file["volumes/a"].attrs["note"] == "x"
        assert file["volumes/a"].attrs["axes"] == "zyx"


def test_an_existing_file_is_replaced_whole_or_left_as_it_was(tmp_path):
    path = tmp_path / "v.h5"
    write_volume(path, {"a": (np.ones((2, 3, 4)), {})}, RESOLUTION)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_volume(path, {"a": (np.zeros((2, 3, 4)), {}), "b": (np.full((2, 2, 2), object()), {})}, RESOLUTION)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    write_volume(path, {"b": (np.zeros((2, 3, 4)), {})}, RESOLUTION)
    assert list(tmp_path.iterdir()) == [path]
    with h5py.File(path) as file:
        assert list(file) == ["b"]


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "nowhere" / "v.h5", tmp_path / "file" / "v.h5"):
        with pytest.raises(NotWritable, match=r"v\.h5: cannot write here"):
            write_volume(path, {"a": (np.zeros((1, 1, 1)), {})}, RESOLUTION)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
