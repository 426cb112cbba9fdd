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
from data.errors import UnreadableFile
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
    """Interrupted when so many blocks of the last stage are computed."""
    def progress(stage, voxels, kept):
        nonlocal blocks
        blocks -= stage == "deep" and not kept
        if blocks == 0:
            raise Interrupted("enough")
    return progress


def planned(networks, image, **options):
    group, = passes(networks, image, memory_budget=BUDGET, **options)[0].groups
    return group


def done_blocks(path, stage="deep"):
    with h5py.File(partial_path(path)) as file:
        return int(file[f"0/{stage}/done"][()].sum())


def go_on(networks, image, path, **options):
    """Give the same again: how many blocks of each stage are computed, and how many voxels there were in all."""
    told = []
    infer_to_file(networks, image, path, ABOUT, **{"memory_budget": BUDGET} | options,
                  progress=lambda *each: told.append(each))
    computed = {name: sum(stage == name and not kept for stage, _, kept in told) for name, _ in networks}
    return computed, {name: sum(n for stage, n, _ in told if stage == name) for name, _ in networks}


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
    assert not path.exists() and done_blocks(path) == blocks
    group = planned(networks, image)
    computed, voxels = go_on(networks, image, path)
    assert computed["deep"] == len(group.last.blocks()) - blocks and voxels == group.voxels
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
    left -= told[0] == "deep"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
infer_to_file([("flat", tiny()), ("deep", tiny(2, seed=1))], Volume.from_array(noise()), sys.argv[1],
              {"checkpoint_sha256": "aa", "engine": "znn"}, memory_budget=300_000, progress=progress)
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, networks, image, expected):
    path = tmp_path / "map.h5"
    assert subprocess.run([sys.executable, "-c", KILLED, path]).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["map.h5.partial"]
    kept = done_blocks(path)
    assert kept in (6, 7)                          # the last was on its way to the disk
    computed, _ = go_on(networks, image, path)
    assert computed["deep"] == len(planned(networks, image).last.blocks()) - kept
    np.testing.assert_array_equal(stored(path)[0], expected)


def test_a_smaller_budget_begins_the_unfinished_map_anew(tmp_path, networks, image, expected):
    path, blocks = tmp_path / "map.h5", len(planned(networks, image).last.blocks())
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(2))
    assert go_on(networks, image, path, memory_budget=0.6 * BUDGET)[0]["deep"] > blocks
    np.testing.assert_allclose(stored(path)[0], expected, atol=1e-5)


def test_a_little_less_memory_keeps_the_recorded_blocks(tmp_path, networks, image, expected):
    path, blocks = tmp_path / "map.h5", len(planned(networks, image).last.blocks())
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(2))
    assert go_on(networks, image, path, memory_budget=0.9 * BUDGET)[0]["deep"] == blocks - 2
    np.testing.assert_array_equal(stored(path)[0], expected)


def test_no_map_of_an_earlier_stage_is_written(tmp_path, networks, image):
    """But where its extremes are needed, which are known only when all of it is there."""
    for how, stages in (("fixed", ["deep"]), ("stack", ["deep", "flat"])):
        path = tmp_path / f"{how}.h5"
        with pytest.raises(Interrupted):
            infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, recursion_scaling=how,
                          progress=stop_after(2))
        assert os.listdir(tmp_path) == [f"{how}.h5.partial"]
        with h5py.File(partial_path(path)) as file:
            assert list(file["0"]) == stages
        assert partial_path(path).stat().st_size < (len(stages) + 0.5) * 4 * np.prod(SHAPE)
        partial_path(path).unlink()


def test_a_stage_that_is_kept_is_not_computed_again(tmp_path, networks, image):
    path, options = tmp_path / "map.h5", {"memory_budget": BUDGET, "recursion_scaling": "stack"}
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, progress=stop_after(2), **options)
    computed, voxels = go_on(networks, image, path, recursion_scaling="stack", memory_budget=0.5 * BUDGET)
    assert computed["flat"] == 0 and voxels == dict.fromkeys(["flat", "deep"], np.prod(SHAPE))
    np.testing.assert_allclose(stored(path)[0], infer_volume(networks, image, **options).read(), atol=1e-5)


@pytest.mark.parametrize("change, words", [
    ({"about": ABOUT | {"checkpoint_sha256": "bb"}}, "checkpoint_sha256: expected 'bb', found 'aa'"),
    ({"region": Roi((0, 0, 0), (3, 61, 83))}, "region: expected"),
    ({"recursion_scaling": "stack"}, "recursion_scaling: expected 'stack', found 'fixed'"),
])
def test_an_unfinished_run_of_something_else_is_not_gone_on_with(tmp_path, networks, image, change, words):
    path = tmp_path / "map.h5"
    with pytest.raises(Interrupted):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET, progress=stop_after(1))
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


@pytest.mark.parametrize("how, averaging, maps", [("fixed", 1, 1), ("stack", 1, 2), ("fixed", 8, 2), ("stack", 8, 10)])
def test_a_full_disk_is_found_before_the_work(tmp_path, networks, image, monkeypatch, how, averaging, maps):
    work = passes(networks, image, averaging=averaging, recursion_scaling=how)
    usage, needed = namedtuple("usage", "total used free"), (4 * maps + 1) * np.prod(SHAPE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, needed))
    check_space(tmp_path / "map.h5", work, itemsize=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, needed - 1))
    with pytest.raises(OutputNotWritable, match=r"GB free"):
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
    with pytest.raises(OutputNotWritable, match=r"map\.h5\.partial: writing failed .*No space left.*are kept"):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET)
    assert done_blocks(path) == 3
    with h5py.File(partial_path(path)) as file:
        assert json.loads(file.attrs["about"])["checkpoint_sha256"] == "aa"


class Damaged:
    """Sections from the 25th on cannot be read."""

    shape, dtype = (30, 61, 83), np.dtype(np.float32)

    def __getitem__(self, slices):
        if slices[0].stop > 24:
            raise UnreadableFile("stack.h5:volumes/raw: reading failed; the file is damaged")
        return noise(self.shape)[slices]


def test_what_cannot_be_read_is_said_and_the_blocks_before_are_kept(tmp_path, networks):
    path, image = tmp_path / "map.h5", Volume(Damaged())
    with pytest.raises(UnreadableFile, match=r"stack\.h5:volumes/raw: reading failed"):
        infer_to_file(networks, image, path, ABOUT, memory_budget=BUDGET)
    assert os.listdir(tmp_path) == ["map.h5.partial"] and done_blocks(path) >= 1
