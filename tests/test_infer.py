"""The command from end to end, on a tiny pair of networks: what it writes, what it refuses, how it stops."""
import json
import os
import signal
import sys

import h5py
import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

import infer
import models
import znn
from data import Standardisation, Volume, standardised, write_volume
from tests.znn.pipeline.tiny import PLACE, RESOLUTION, SHAPE, tiny, whole
from znn import __version__
from znn.graph.compiled import Compiled, has_instruction
from znn.pipeline import checkpoint, prediction
from znn.pipeline.inference import infer_array
from znn.pipeline.output import BOUNDARY
from znn.runtime import prepared

BUILDERS = {"FLAT": lambda options: tiny(), "DEEP": lambda options: tiny(2, seed=1)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a stack and a checkpoint, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "build", lambda name, options: BUILDERS[name](options))
    values = np.random.default_rng(0).integers(0, 255, SHAPE, np.uint8)
    write_volume("stack.h5", {"volumes/raw": (values, {})}, RESOLUTION, PLACE)
    write_checkpoint()
    return tmp_path


def write_checkpoint(path="final.safetensors", build=BUILDERS, **meta):
    networks = {"flat": "FLAT", "deep": "DEEP"}
    tensors = {f"{stage}/{key}": value for stage, name in networks.items()
               for key, value in build[name]({}).state_dict().items()}
    checkpoint.save(path, tensors, {
        "normalisation": {"kind": "section"}, "recursion_scaling": "fixed", "resolution_zyx": list(RESOLUTION),
        "stages": [{"name": s, "model": m, "options": {}} for s, m in networks.items()], "config": {"seed": 3}} | meta)


def command(monkeypatch, *overrides, **settings):
    given = {"checkpoint": "final.safetensors", "input": "stack.h5", "output": "map.h5",
             "memory_budget_gb": "64"} | settings
    monkeypatch.setattr(sys, "argv", ["infer.py", *(f"{k}={v}" for k, v in given.items()), *overrides])
    infer.main()


def stop_at_the_last_stage(meter, stage, voxels, kept):
    if stage == "deep":
        os.kill(os.getpid(), signal.SIGTERM)


def read(path="map.h5"):
    with h5py.File(path) as file:
        return file[BOUNDARY][()], dict(file[BOUNDARY].attrs)


def expected(*networks):
    image = standardised(Volume.open("stack.h5"), Standardisation("section"))
    return whole(networks or [tiny(), tiny(2, seed=1)], image.read())


def test_the_map_and_where_it_comes_from(folder, monkeypatch, capsys):
    command(monkeypatch)
    values, attributes = read()
    np.testing.assert_allclose(values, expected(), atol=1e-5)
    assert tuple(attributes["resolution"]) == RESOLUTION and tuple(attributes["offset"]) == PLACE
    assert attributes["checkpoint_sha256"] == infer.sha256("final.safetensors")
    assert attributes["version"] == __version__ and attributes["source"] == "stack.h5:volumes/raw"
    assert json.loads(attributes["normalisation"]) == {"kind": "section"}
    assert [stage["name"] for stage in json.loads(attributes["stages"])] == ["flat", "deep"]
    assert json.loads(attributes["config"])["memory_budget_gb"] == 64
    assert json.loads(attributes["training_config"]) == {"seed": 3}
    said = capsys.readouterr()
    assert f"written: map.h5:{BOUNDARY}, 7 x 61 x 83 float32" in said.out
    assert "voxel/s" in said.out and "peak memory" in said.out and "warning" not in said.err
    assert sorted(os.listdir()) == ["final.safetensors", "map.h5", "stack.h5"]


@pytest.mark.parametrize("overrides, runs", [([], True), (["compiled=false"], False), (["engine=torch"], False)])
def test_networks_are_compiled_unless_one_says_not(folder, monkeypatch, overrides, runs):
    ran = []
    monkeypatch.setattr(Compiled, "__call__", lambda self, *args, real=Compiled.__call__, **named: (
        ran.append(self.function.name), real(self, *args, **named))[1])
    try:
        command(monkeypatch, *overrides)
    finally:
        znn.use_engine("znn")
    np.testing.assert_allclose(read()[0], expected(), atol=1e-5)
    assert bool(ran) == runs


def deepened(monkeypatch):
    """The first network replaced by one with convolutions inside, and the checkpoint."""
    torch.manual_seed(2)
    deep = torch.nn.Sequential(*(znn.nn.Conv3d(i, o, (1, 3, 3), activation=znn.nn.ReLU())
                                 for i, o in ((1, 6), (6, 6), (6, 6))),
                               znn.nn.Conv3d(6, 2, 1)).eval()
    monkeypatch.setitem(BUILDERS, "FLAT", lambda options: deep)
    write_checkpoint()
    return deep


def test_precision_bf16_is_close_and_for_compiled_networks(folder, monkeypatch):
    deep = deepened(monkeypatch)
    command(monkeypatch, "precision=bf16")
    values, attributes = read()
    difference = np.abs(values - expected(deep, tiny(2, seed=1)))
    assert 1e-5 < difference.max() < 0.02 and json.loads(attributes["config"])["precision"] == "bf16"
    for overrides, message in ((["precision=fp8"], "precision: expected one of fp32, bf16, int8"),
                               (["precision=bf16", "compiled=false"], "expected fp32 where networks are not compiled"),
                               (["precision=int8", "engine=torch"], "expected fp32 where networks are not compiled")):
        with pytest.raises(SystemExit, match=message):
            command(monkeypatch, *overrides, output="other.h5")


def test_the_mean_over_orientations(folder, monkeypatch):
    command(monkeypatch, averaging="8")
    values, attributes = read()
    image = standardised(Volume.open("stack.h5"), Standardisation("section")).read()
    expected = infer_array([tiny(), tiny(2, seed=1)], image, averaging=8)
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert attributes["averaging"] == 8
    with pytest.raises(SystemExit, match="averaging: expected one of 1, 8, 16, found 2"):
        command(monkeypatch, output="other.h5", averaging="2")


def test_precision_int8_calibrates_itself_and_says_what_it_changed(folder, monkeypatch, capsys):
    deep = deepened(monkeypatch)
    command(monkeypatch, "precision=int8")
    values, attributes = read()
    difference = np.abs(values - expected(deep, tiny(2, seed=1)))
    assert 1e-5 < difference.max() < 0.05
    found = json.loads(attributes["int8"])
    assert [(name, len(ranges)) for name, ranges in found["ranges"].items()] == [("flat", 3), ("deep", 1)]
    assert difference.mean() / 2 < found["mean_difference"] < 2 * difference.mean()
    said = capsys.readouterr()
    assert ("no instruction" in said.err) == (not has_instruction("int8"))
    assert f"int8: on {found['blocks']} sampled blocks the map differs from float32 by 0.00" in said.out
    with pytest.raises(SystemExit, match=r"expected at most 1e-05 on average: say precision=bf16, or allow more with"):
        command(monkeypatch, "precision=int8", "int8_tolerance=1e-5", output="other.h5")
    assert sorted(os.listdir()) == ["final.safetensors", "map.h5", "stack.h5"]
    with pytest.raises(SystemExit, match="int8_tolerance: expected 0 or a number above it"):
        command(monkeypatch, "int8_tolerance=-1", output="other.h5")


def test_an_unfinished_run_in_int8_goes_on_with_its_own_calibration(folder, monkeypatch):
    deepened(monkeypatch)
    monkeypatch.setattr(infer, "block_budget", lambda *_: 300_000)
    command(monkeypatch, "precision=int8", output="undisturbed.h5")
    with monkeypatch.context() as patch:
        patch.setattr(infer.Meter, "__call__", stop_at_the_last_stage)
        with pytest.raises(SystemExit, match=r"kept in map.h5.partial"):
            command(patch, "precision=int8")
    with pytest.raises(SystemExit, match=r"int8: expected None, found .*precision: expected 'fp32', found 'int8'"):
        command(monkeypatch)
    monkeypatch.setattr(prediction, "calibrate", None)
    command(monkeypatch, "precision=int8")
    assert np.array_equal(read()[0], read("undisturbed.h5")[0])
    assert read()[1]["int8"] == read("undisturbed.h5")[1]["int8"]


def test_a_compiled_run_does_not_go_on_with_what_was_not(folder, monkeypatch):
    monkeypatch.setattr(infer, "block_budget", lambda *_: 300_000)
    with monkeypatch.context() as patch:
        patch.setattr(infer.Meter, "__call__", stop_at_the_last_stage)
        with pytest.raises(SystemExit, match=r"kept in map.h5.partial"):
            command(patch, compiled="false")
    with pytest.raises(SystemExit, match=r"compiled: expected .*[Tt]rue.* found .*[Ff]alse"):
        command(monkeypatch)


def test_one_stage_of_a_pair_over_a_part_as_uint8(folder, monkeypatch):
    command(monkeypatch, "z_range=[2,6]", "x_range=[70,83]", last_stage="flat", uint8="true", output_dataset="a/b")
    with h5py.File("map.h5") as file:
        item = file["a/b"]
        np.testing.assert_allclose(item[()] * item.attrs["scale"], expected(tiny())[2:6, :, 70:], atol=0.5 / 255 + 1e-5)
        assert tuple(item.attrs["offset"]) == (PLACE[0] + 2 * 40, PLACE[1], PLACE[2] + 70 * 3.5)
        assert [stage["name"] for stage in json.loads(item.attrs["stages"])] == ["flat"]


@pytest.mark.parametrize("compiled", ["true", "false"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_which_goes_on_later(folder, monkeypatch, capsys, number, compiled):
    left, before = 20, signal.getsignal(number)

    def kill(layer, arguments, output):
        nonlocal left
        left -= not isinstance(output, torch.Tensor) or output.device.type == "cpu"
        if left == 0:
            os.kill(os.getpid(), number)

    def run(kernel, *operands, real=prepared.Convolution.run):
        real(kernel, *operands)
        kill(kernel, operands, None)

    monkeypatch.setattr(infer, "block_budget", lambda *_: 300_000)
    with monkeypatch.context() as patch:
        patch.setattr(prepared.Convolution, "run", run)
        hook = register_module_forward_hook(kill)
        with pytest.raises(SystemExit) as stop:
            command(monkeypatch, compiled=compiled)
        hook.remove()
    assert str(stop.value) == (f"error: stopped by {number.name}; finished blocks are kept in map.h5.partial: "
                               "give the same command again to go on")
    assert signal.getsignal(number) == before
    assert not os.path.exists("map.h5")
    command(monkeypatch, compiled=compiled)
    np.testing.assert_allclose(read()[0], expected(), atol=1e-5)
    assert "voxels kept from an earlier run" in capsys.readouterr().out
    assert not os.path.exists("map.h5.partial")


def test_a_changed_checkpoint_does_not_go_on(folder, monkeypatch):
    monkeypatch.setattr(infer, "block_budget", lambda *_: 300_000)
    monkeypatch.setattr(infer.Meter, "__call__", stop_at_the_last_stage)
    with pytest.raises(SystemExit, match=r"kept in map.h5.partial"):
        command(monkeypatch)
    write_checkpoint(build=BUILDERS | {"FLAT": lambda options: tiny(seed=5)})
    with pytest.raises(SystemExit, match=r"checkpoint_sha256: expected .* found .*resume=false"):
        command(monkeypatch)
    assert not os.path.exists("map.h5")


def test_another_resolution_is_warned_about(folder, monkeypatch, capsys):
    write_checkpoint(resolution_zyx=[50, 4, 4])
    command(monkeypatch, last_stage="flat")
    assert "voxels of 40 x 4 x 3.5 nm (z, y, x), the network was trained at 50 x 4 x 4 nm" in capsys.readouterr().err


def test_weights_that_give_no_numbers_are_named(folder, monkeypatch):
    write_checkpoint(build=BUILDERS | {"FLAT": not_a_number})
    with pytest.raises(SystemExit, match=r"error: final.safetensors: stage 'flat', block .* found NaN or infinity"):
        command(monkeypatch)


def test_a_volume_of_floats_is_read_with_a_bar(folder, monkeypatch, capsys):
    raw(np.ones(SHAPE, np.float32), resolution=RESOLUTION)
    command(monkeypatch)
    assert "looking for NaN in stack.h5:volumes/raw" in capsys.readouterr().err


def raw(values, **attributes):
    with h5py.File("stack.h5", "w") as file:
        file["volumes/raw"] = values
        file["volumes/raw"].attrs.update(attributes)


def with_nan():
    values = np.ones(SHAPE, np.float32)
    values[6, 60, 82] = np.nan
    return values


def not_a_number(options):
    network = BUILDERS["FLAT"](options)
    for parameter in network.parameters():
        parameter.data.fill_(np.nan)
    return network


def other_weights():
    write_checkpoint(build=BUILDERS | {"FLAT": lambda options: tiny(first=(1, 3, 3))})


@pytest.mark.parametrize("prepare, settings, words", [
    (None, {"input": "none.h5"}, "none.h5: no such file"),
    (None, {"input_dataset": "volumes/grey"}, "volumes/raw"),
    (lambda: raw(np.zeros((4, 5), np.uint8)), {}, r"stack\.h5:volumes/raw: expected 3 axes \(z, y, x\), found"),
    (lambda: raw(np.zeros((0, 5, 5), np.uint8)), {}, "at least one voxel"),
    (lambda: raw(with_nan()), {}, r"finite values, found nan at voxel .*\(6, 60, 82\)"),
    (lambda: raw(np.zeros((1, 9, 9), np.uint8)), {}, "along z, the volume has 1, .* cannot be mirrored"),
    (None, {"checkpoint": "none.safetensors"}, "none.safetensors: no such file"),
    (None, {"checkpoint": "stack.h5"}, "expected a safetensors file"),
    (other_weights, {}, "stage flat: the weights do not fit"),
    (None, {"output": "no/map.h5"}, "the folder no does not exist"),
    (None, {"output": "stack.h5", "overwrite": "true"}, "this is the input stack.h5 itself"),
    (None, {"output": "final.safetensors", "overwrite": "true"}, "this is the input final.safetensors itself"),
    (None, {"z_range": "[5,9]"}, r"z_range: expected \[first, last \+ 1\] within 0\.\.7, found \[5, 9\]"),
    (None, {"output_dataset": "/"}, "output_dataset: expected a path inside the file"),
    (None, {"last_stage": "third"}, "one of flat, deep, found 'third'"),
    (None, {"memory_budget_gb": "0.01"}, r"memory_budget_gb: found 0\.01.*give at least"),
    (None, {"memory_budget": "1"}, "did you mean memory_budget_gb"),
    (None, {"engine.threads": "4096"}, "engine.threads: expected 0"),
])
def test_bad_input_is_explained_and_nothing_written(folder, monkeypatch, prepare, settings, words):
    if prepare:
        prepare()
    before = {name: (folder / name).read_bytes() for name in os.listdir()}
    with pytest.raises(SystemExit, match=words) as stop:
        command(monkeypatch, **settings)
    assert str(stop.value).startswith("error: ") and str(stop.value).count("\n") < 2
    assert {name: (folder / name).read_bytes() for name in os.listdir()} == before
