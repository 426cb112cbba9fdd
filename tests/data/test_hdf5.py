"""Bad input, each with its error; and reading from several processes."""
import errno
import multiprocessing
import subprocess
import sys
import warnings

import h5py
import numpy as np
import pytest

from data import DataError, Roi, Volume, hdf5
from data.errors import (
    EmptyVolume,
    LockedFile,
    MissingDataset,
    MissingFile,
    MissingFilter,
    UnreadableFile,
    WrongRank,
    WrongType,
)

SHAPE = (7, 61, 83)


@pytest.fixture
def stack(tmp_path):
    """A file with annotations beside the volumes, as CREMI has."""
    path = tmp_path / "stack.h5"
    with h5py.File(path, "w") as file:
        file["annotations/ids"] = np.arange(5)
        file["volumes/raw"] = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
        file["volumes/labels/neuron_ids"] = np.zeros(SHAPE, np.uint64)
    return path


def test_missing_file_names_a_near_one(stack):
    with pytest.raises(MissingFile, match=r"stak\.h5: no such file; did you mean stack\.h5"):
        Volume.open(stack.with_name("stak.h5"))
    with pytest.raises(MissingFile, match=r"folder .* does not exist"):
        Volume.open(stack.parent / "nowhere" / "stack.h5")


def test_missing_dataset_lists_what_there_is(stack):
    with pytest.raises(MissingDataset) as caught:
        Volume.open(stack, "volumes/labels/neuron_id")
    message = str(caught.value)
    assert "stack.h5:volumes/labels/neuron_id: no such dataset; did you mean volumes/labels/neuron_ids" in message
    for name in ("annotations/ids (5,) int64", "volumes/raw (7, 61, 83) uint8"):
        assert name in message


def test_a_group_is_not_a_dataset(stack):
    with pytest.raises(MissingDataset, match="volumes/labels: is a group, not a dataset"):
        Volume.open(stack, "volumes/labels")


def test_not_hdf5(tmp_path):
    path = tmp_path / "stack.h5"
    path.write_bytes(b"II*\0 a picture, not a container" * 100)
    with pytest.raises(UnreadableFile, match="expected an HDF5 file"):
        Volume.open(path)


def test_truncated_file(stack):
    whole = stack.read_bytes()
    stack.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(UnreadableFile, match="truncated"):
        Volume.open(stack)


@pytest.mark.parametrize("array, error, message", [
    (np.zeros((61, 83), np.uint8), WrongRank, r"3 axes \(z, y, x\), found shape \(61, 83\).*\(1, y, x\)"),
    (np.zeros((1, 7, 61, 83), np.uint8), WrongRank, "channels"),
    (np.uint8(3), WrongRank, r"found shape \(\)"),
    (np.zeros((0, 61, 83), np.uint8), EmptyVolume, r"found shape \(0, 61, 83\)"),
    (np.zeros((2, 2, 2), "S3"), WrongType, "expected integers or floats"),
    (np.zeros((2, 2, 2), np.complex64), WrongType, "complex64"),
])
def test_what_is_no_volume(tmp_path, array, error, message):
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["raw"] = array
    with pytest.raises(error, match=message):
        Volume.open(tmp_path / "v.h5", "raw")


def exotic(path, code):
    """A dataset whose chunks claim to be compressed with filter `code`."""
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1, 8, 8))
        properties.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((1, 8, 8))
        item = h5py.h5d.create(file.id, b"raw", h5py.h5t.NATIVE_UINT8, space, properties)
        item.write_direct_chunk((0, 0, 0), bytes(40), 0)


@pytest.mark.parametrize("code, name", [(32768, "filter 32768"), (32001, r"filter 32001 \(blosc\)")])
def test_missing_filter_names_the_package(tmp_path, code, name):
    exotic(tmp_path / "v.h5", code)
    if h5py.h5z.filter_avail(code):
        pytest.skip("this filter is installed here")
    with pytest.raises(MissingFilter, match=rf"v\.h5:raw: compressed with HDF5 {name}.*hdf5plugin.*h5repack"):
        Volume.open(tmp_path / "v.h5", "raw")


def refusing_locks(number, calls):
    """h5py.File on a file system that cannot lock."""
    def opener(path, mode, locking=None, **options):
        calls.append(locking)
        if locking is None:
            raise OSError(number, f"unable to lock file, errno = {number}")
        return h5py.File(path, mode, locking=locking, **options)
    return opener


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.ENOTSUP])
def test_file_system_without_locks(stack, monkeypatch, number):
    calls = []
    names = {name: getattr(h5py, name) for name in ("Dataset", "Group", "h5z")}
    monkeypatch.setattr(hdf5, "h5py", type("Patched", (), names | {"File": refusing_locks(number, calls)}))
    assert Volume.open(stack).shape == SHAPE
    assert calls == [None, False]


WRITER = "import h5py, sys, time; f = h5py.File(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"


def test_a_writer_elsewhere_is_respected(stack):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(stack)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout.readline()
        with pytest.raises(LockedFile, match="another process has this file open for writing"):
            Volume.open(stack)
    finally:
        writer.communicate()


def test_one_huge_chunk_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "LARGE_CHUNK_BYTES", 1000)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_dataset("raw", data=np.zeros((2, 30, 30), np.uint8), chunks=(2, 30, 30))
        file.create_dataset("small", data=np.zeros((2, 30, 30), np.uint8), chunks=(1, 10, 10))
    with pytest.warns(UserWarning, match="repack it: h5repack"):
        Volume.open(tmp_path / "v.h5", "raw")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Volume.open(tmp_path / "v.h5", "small")


def read_sum(volume):
    return int(volume.read(Roi((1, 2, 3), (5, 50, 60))).sum())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_open_volume_reads_right_in_other_processes(stack, method):
    volume = Volume.open(stack)
    expected = read_sum(volume)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(read_sum, [volume] * 6) == [expected] * 6
    assert read_sum(volume) == expected


def test_a_replaced_file_is_read_anew(stack):
    old = Volume.open(stack)
    before = old.read()
    new = stack.with_name("new.h5")
    with h5py.File(new, "w") as file:
        file["volumes/raw"] = 255 - before
    new.replace(stack)
    np.testing.assert_array_equal(Volume.open(stack).read(), 255 - before)
    np.testing.assert_array_equal(old.read(), before)


def test_every_error_is_a_data_error():
    for error in (MissingFile, UnreadableFile, LockedFile, MissingDataset, MissingFilter, WrongRank, WrongType,
                  EmptyVolume):
        assert issubclass(error, DataError) and issubclass(error, ValueError)
