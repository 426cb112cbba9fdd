"""Maps in files: a killed run goes on to the same bits, and nothing is ever written over by mistake."""
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple

import h5py
import numpy as np
import pytest

from data import Roi, Volume
from tests.znn.pipeline.tiny import PLACE, RESOLUTION, SHAPE, noise, tiny
from znn.pipeline.averaging import passes
from znn.pipeline.errors import Interrupted, OutputExists, OutputNotWritable, PartialMismatch
from znn.pipeline.inference import infer_volume
from znn.pipeline.output import BOUNDARY, check_output, check_space, infer_to_file, write_map
from znn.pipeline.partial import PartialFile, partial_path

BUDGET = 300_000
ABOUT = {"checkpoint_sha256": "aa", "engine": "znn"}


@pytest.fixture(scope="module")
def networks():
    return [("flat", tiny()), ("deep", tiny(2, seed=1))]


@pytest.fixture(scope="module")
def image():
    return Volume.from_array(noise(), RESOLUTION, PLACE)


@pytest.fixture(scope="module")
def expected(networks, image):
    return infer_volume(networks, image, memory_budget=BUDGET).read()


def stored(path):
    with h5py.File(path) as file:
        item = file[BOUNDARY]
        return item[()], dict(item.attrs)


def stop_after(blocks):
    def progress(stage, voxels, kept):
        nonlocal blocks
        blocks -= not kept
        if blocks == 0:
            raise Interrupted("enough")
    return progress


def test_the_file_holds_the_map_and_where_it_lies(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    result = infer_to_file(networks, image, path, ABOUT, attributes={"origin": "here"}, memory_budget=BUDGET)
    values, attributes = stored(path)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(result.read(), expected)
    assert values.dtype == np.float32 and values.shape == SHAPE
    assert tuple(attributes["resolution"]) == RESOLUTION and tuple(attributes["offset"]) == PLACE
    assert attributes["axes"] == "zyx" and attributes["origin"] == "here" and "1 = membrane" in attributes["meaning"]
    assert os.listdir(tmp_path) == ["map.h5"]


def test_uint8_records_its_scale(tmp_path, networks, image, expected):
    infer_to_file(networks, image, tmp_path / "map.h5", ABOUT, uint8=True, memory_budget=BUDGET)
    values, attributes = stored(tmp_path / "map.h5")
    assert values.dtype == np.uint8
    np.testing.assert_allclose(values * attributes["scale"], expected, atol=0.5 / 255 + 1e-6)


def test_an_unknown_resolution_is_not_made_up(tmp_path):
    write_map(tmp_path / "map.h5", BOUNDARY, Volume.from_array(np.zeros((2, 3, 4), np.float32)))
    assert "resolution" not in stored(tmp_path / "map.h5")[1]


@pytest.mark.parametrize("blocks", [1, 2, 9])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, networks, image, expected, blocks):
    path = tmp_path / "map.h5"
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(blocks))
    assert not path.exists() and partial_path(path).exists()
    told = []
    infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=lambda *x: told.append(x))
    assert sum(kept for _, _, kept in told) == blocks and sum(n for _, n, _ in told) == 2 * np.prod(SHAPE)
    np.testing.assert_array_equal(stored(path)[0], expected)
    assert os.listdir(tmp_path) == ["map.h5"]


KILLED = """
import os, signal, sys
from data import Volume
from tests.znn.pipeline.tiny import noise, tiny
from znn.pipeline.output import infer_to_file
left = 7
def progress(*told):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
infer_to_file([("flat", tiny()), ("deep", tiny(2, seed=1))], Volume.from_array(noise()), sys.argv[1],
              {"checkpoint_sha256": "aa", "engine": "znn"}, memory_budget=300_000, progress=progress)
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    assert subprocess.run([sys.executable, "-c", KILLED, path]).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["map.h5.partial"]
    told = []
    infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=lambda *x: told.append(x))
    assert sum(kept for _, _, kept in told) == 7
    np.testing.assert_array_equal(stored(path)[0], expected)


def test_a_smaller_budget_begins_the_unfinished_stage_anew(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    flat = len(passes(networks, image, memory_budget=BUDGET)[0].stages[0].blocks())
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(flat + 2))
    told = []
    infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET / 2, progress=lambda *x: told.append(x))
    assert [kept for stage, _, kept in told if stage == "flat"] == [True] * flat
    deep = [kept for stage, _, kept in told if stage == "deep"]
    assert not any(deep) and len(deep) > len(passes(networks, image, memory_budget=BUDGET)[0].stages[1].blocks())
    np.testing.assert_allclose(stored(path)[0], expected, atol=1e-5)


def test_a_little_less_memory_keeps_the_recorded_blocks(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(2))
    told = []
    infer_to_file(networks, image, path, ABOUT, memory_budget=0.9 * BUDGET, progress=lambda *x: told.append(x))
    assert sum(kept for _, _, kept in told) == 2
    np.testing.assert_array_equal(stored(path)[0], expected)


@pytest.mark.parametrize("change, words", [
    ({"about": ABOUT | {"checkpoint_sha256": "bb"}}, "checkpoint_sha256: expected 'bb', found 'aa'"),
    ({"region": Roi((0, 0, 0), (3, 61, 83))}, "region: expected"),
    ({"recursion_scaling": "stack"}, "recursion_scaling: expected 'stack', found 'fixed'"),
])
def test_an_unfinished_run_of_something_else_is_not_gone_on_with(tmp_path, networks, image, change, words):
    path = tmp_path / "map.h5"
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(3))
    before = partial_path(path).read_bytes()
    with pytest.raises(PartialMismatch, match=f"{words}.*resume=false"):
        infer_to_file(networks, image, path, **{"about": ABOUT, "memory_budget": BUDGET} | change)
    assert partial_path(path).read_bytes() == before and not path.exists()
    infer_to_file(networks, image, path, **{"about": ABOUT, "memory_budget": BUDGET, "resume": False} | change)
    assert path.exists() and not partial_path(path).exists()


@pytest.mark.parametrize("content", [b"not HDF5", b""])
def test_a_partial_file_that_is_none_is_left_alone(tmp_path, networks, image, content):
    partial_path(tmp_path / "map.h5").write_bytes(content)
    with pytest.raises(PartialMismatch, match="cannot be opened"):
        infer_to_file(networks, image, tmp_path / "map.h5", ABOUT)
    assert partial_path(tmp_path / "map.h5").read_bytes() == content


def test_hdf5_of_another_kind_is_left_alone(tmp_path, networks, image):
    with h5py.File(partial_path(tmp_path / "map.h5"), "w") as file:
        file["mine"] = 1
    with pytest.raises(PartialMismatch, match="found something else"):
        infer_to_file(networks, image, tmp_path / "map.h5", ABOUT)


def test_two_processes_do_not_write_one_map(tmp_path, networks, image):
    work = passes(networks, image)
    with PartialFile(partial_path(tmp_path / "map.h5"), work, ABOUT):
        script = ("import sys\nfrom pathlib import Path\nfrom znn.pipeline.partial import _open\n"
                  "_open(Path(sys.argv[1]))")
        out = subprocess.run([sys.executable, "-c", script, partial_path(tmp_path / "map.h5")],
                             capture_output=True, text=True)
    assert "OutputNotWritable" in out.stderr and "another process is writing this map" in out.stderr


def test_failing_before_the_first_block_leaves_nothing(tmp_path, networks):
    values = noise()
    values[0, 3, 5] = np.nan
    with pytest.raises(ValueError, match="finite"):
        infer_to_file(networks, Volume.from_array(values), tmp_path / "map.h5", ABOUT)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("link", ["same", "symbolic", "hard", "partial"])
def test_the_input_is_never_written_over(tmp_path, link):
    source, output = tmp_path / "in.h5", tmp_path / "out.h5"
    source.write_bytes(b"precious")
    if link == "same":
        output = source
    elif link == "symbolic":
        output.symlink_to(source)
    elif link == "hard":
        os.link(source, output)
    else:
        os.link(source, partial_path(output))
    with pytest.raises(OutputExists, match=r"the input .* itself"):
        check_output(output, overwrite=True, inputs=[source])
    assert source.read_bytes() == b"precious"


def test_an_existing_output_is_kept_unless_told(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    path.write_bytes(b"precious")
    with pytest.raises(OutputExists, match="overwrite=true"):
        infer_to_file(networks, image, path, ABOUT)
    assert path.read_bytes() == b"precious" and os.listdir(tmp_path) == ["map.h5"]
    infer_to_file(networks, image, path, ABOUT, overwrite=True, memory_budget=BUDGET)
    np.testing.assert_array_equal(stored(path)[0], expected)


def test_places_that_cannot_be_written_to(tmp_path, monkeypatch):
    with pytest.raises(OutputNotWritable, match="does not exist"):
        check_output(tmp_path / "no" / "map.h5")
    with pytest.raises(OutputNotWritable, match=r"found a folder.*boundary\.h5"):
        check_output(tmp_path, overwrite=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputNotWritable, match="no permission"):
        check_output(tmp_path / "map.h5")


def test_a_folder_that_refuses_is_said(tmp_path, networks, image):
    """The kernel's own file system takes no files, not even from root."""
    with pytest.raises(OutputNotWritable, match=r"/proc/map\.h5: no (file can be made|permission to write) in /proc"):
        infer_to_file(networks, image, "/proc/map.h5", ABOUT)


def test_a_full_disk_is_found_before_the_work(tmp_path, networks, image, monkeypatch):
    work, voxels = passes(networks, image), np.prod(SHAPE)
    usage = namedtuple("usage", "total used free")
    for free, fits in ((9 * voxels - 1, False), (9 * voxels, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        if fits:
            check_space(tmp_path / "map.h5", work, itemsize=1)
        else:
            with pytest.raises(OutputNotWritable, match=r"2 stage.*GB free"):
                check_space(tmp_path / "map.h5", work, itemsize=1)


def test_a_disk_that_fills_up_keeps_the_blocks_before(tmp_path, networks, image, monkeypatch):
    path = tmp_path / "map.h5"
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputNotWritable, match=r"No space left.*are kept"):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET)
    with h5py.File(partial_path(path)) as file:
        assert file["0/flat/done"][()].sum() == 3
        assert json.loads(file.attrs["about"])["checkpoint_sha256"] == "aa"
