"""train.py as a user runs it: stopped by a signal, gone on with, and what it refuses."""
import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import models
import train
from data.phantom import write_phantom
from models.zoo import located
from znn.pipeline.checkpoint import load, load_stages
from znn.pipeline.errors import PipelineError
from znn.pipeline.lock import locked

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 300


def settings(folder, *more):
    stack = "data.stacks.stack"
    arguments = ["experiment=isbi2012_recursive", "data=stack", f"data.root={folder}", f"{stack}.path=stack.h5",
                 f"{stack}.labels=volumes/labels/neuron_ids", f"{stack}.kind=ids", f"{stack}.train_z=[0,5]",
                 f"{stack}.select_z=[5,7]", f"runs={folder}", "name=run"]
    for stage in ("vd2d", "vd2d3d"):
        arguments += [f"stages.{stage}.trainer.{key}"
                      for key in ("patch=[1,2,3]", "save_every=1", "preview_every=100000")]
    return [*arguments, *more]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    train.main()


@pytest.fixture
def folder(tmp_path):
    write_phantom(tmp_path / "stack.h5", (7, 61, 83), seed=1, resolution_zyx=(40, 4, 3.5), offset_zyx=(37, 911, 911))
    return tmp_path


def wait_for(path, process):
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def test_sigterm_saves_and_says_how_to_go_on(folder, monkeypatch, capsys):
    command = [sys.executable, "train.py", *settings(folder, "stages.vd2d.trainer.steps=100000")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            wait_for(folder / "run" / "last.safetensors", process)
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert process.returncode == 1 and "Traceback" not in errors
    assert re.search(rf"error: stopped by SIGTERM; saved in .*; go on with: .* resume={folder}/run", errors)
    steps = load(folder / "run" / "last.safetensors")[1]["training"]["progress"]["step"]
    assert steps >= 1

    run(monkeypatch, f"resume={folder}/run", f"stages.vd2d.trainer.steps={steps + 1}", "stages.vd2d3d.trainer.steps=1")
    out = capsys.readouterr().out
    assert f"vd2d: {steps + 1} steps" in out and "vd2d3d: 1 steps" in out and "final.safetensors" in out
    stages, meta = load_stages(folder / "run" / "final.safetensors", models.build)
    assert [name for name, _ in stages] == ["vd2d", "vd2d3d"] and stages[1][1].in_channels == 2
    assert meta["resolution_zyx"] == [40.0, 4.0, 3.5] and meta["config"]["experiment"] == "isbi2012_recursive"
    with pytest.raises(SystemExit, match=r"there is a run already; go on with it by resume="):
        run(monkeypatch, *settings(folder))
    with pytest.raises(SystemExit, match=r"stages.vd2d.model: .* was begun with"):
        run(monkeypatch, f"resume={folder}/run", "stages.vd2d.model.options.activation=tanh")


def test_the_name_of_a_run_that_failed_before_its_first_step_is_free_again(folder, monkeypatch):
    steps = [f"stages.{stage}.trainer.steps=1" for stage in ("vd2d", "vd2d3d")]
    with monkeypatch.context() as broken:
        broken.setattr("znn.pipeline.recursion.StageTraining.run", fail)
        with pytest.raises(SystemExit, match="nothing was learnt"):
            run(broken, *settings(folder, *steps))
    assert [p.name for p in folder.iterdir()] == ["stack.h5"]
    run(monkeypatch, *settings(folder, *steps))
    with monkeypatch.context() as broken, pytest.raises(SystemExit, match="nothing was learnt"):
        broken.setattr("znn.pipeline.recursion.Recursion.run", fail)
        run(broken, f"resume={folder}/run")
    assert (folder / "run" / "config.yaml").is_file() and (folder / "run" / "final.safetensors").is_file()


def test_two_processes_do_not_work_on_one_run(folder, monkeypatch):
    steps = [f"stages.{stage}.trainer.steps=1" for stage in ("vd2d", "vd2d3d")]
    run(monkeypatch, *settings(folder, *steps))
    before = (folder / "run" / "config.yaml").read_bytes()
    with locked(folder / "run"), pytest.raises(SystemExit, match="run: another process works on this run"):
        run(monkeypatch, f"resume={folder}/run", "stages.vd2d3d.trainer.steps=2")
    assert (folder / "run" / "config.yaml").read_bytes() == before
    assert not (folder / "run" / ".lock").exists()


def test_the_pair_of_the_zoo_is_fitted_to_a_stack_in_one_command(folder, monkeypatch):
    stack = "data.stacks.stack"
    quick = [f"stages.{stage}.trainer.{key}" for stage in ("vd2d", "vd2d3d") for key in (
        "patch=[1,2,3]", "steps=1", "optimiser.learning_rate=1e-30", "preview_every=100000")]
    run(monkeypatch, "experiment=finetune", f"{stack}.path={folder}/stack.h5", f"{stack}.kind=ids",
        f"{stack}.labels=volumes/labels/neuron_ids", f"{stack}.train_z=[0,5]", f"{stack}.select_z=[5,7]",
        f"runs={folder}", *quick)
    (kept, meta), (given, _) = load(folder / "finetune" / "final.safetensors"), load(located("zoo/isbi2012_vd2d3d"))
    assert kept.keys() == given.keys() and all((kept[key] == given[key]).all() for key in given)
    assert meta["config"]["init"] == "zoo/isbi2012_vd2d3d" and meta["resolution_zyx"] == [40.0, 4.0, 3.5]


def fail(*_, **__):
    raise PipelineError("nothing was learnt")


@pytest.mark.parametrize("change, text", [
    ("data.stacks.stack.path=stak.h5", "did you mean stack.h5"),
    ("data.stacks.stack.labels=volumes/labels/neurons", "The file has: .*volumes/labels/neuron_ids"),
    ("data.stacks.stack.select_z=[4,7]", "overlap"),
    ("data.stacks.stack.train_z=[0,9]", r"within the sections 0\.\.7"),
    ("data.mirror=false", "no patch fits"),
    ("data.recursion_scaling=fix", "fixed, stack"),
    ("engine.name=zn", "expected one of znn, torch"),
    ("model@stages.vd2d3d.model=vd2d", "stages.vd2d3d: expected a network of 2 input channels"),
    ("stages.vd2d.model.options.activation=sine", "sine"),
    ("seed=-1", "seed: expected 0 or a number above it"),
    ("data.workers=-1", "data.workers: expected 0 or"),
    ("stages.vd2d.trainer.schedule.warmup_steps=-1", "warmup_steps: expected 0 or"),
    ("stages.vd2d.trainer.schedule.final_fraction=-1", "final_fraction: expected 0 or"),
    ("stages.vd2d.trainer.optimiser.weight_decay=-1", "weight_decay: expected 0 or"),
    ("memory_budget_gb=0.001", "needs at least"),
    ("init=zoo/nothing", "network 'zoo/nothing' is unknown: choose one of .*zoo/isbi2012_vd2d3d"),
    ("init=nothing.safetensors", "no such file"),
    ("data.stacks.stack.raw=volumes/nan", "finite values, found nan"),
])
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(folder, monkeypatch, change, text):
    with h5py.File(folder / "stack.h5", "a") as file:
        file["volumes/nan"] = np.full((7, 61, 83), np.nan, np.float32)
        file["volumes/nan"].attrs.update(file["volumes/raw"].attrs)
    with pytest.raises(SystemExit, match=text) as end:
        run(monkeypatch, *settings(folder, change))
    assert str(end.value.code).startswith("error: ")
    assert [p.name for p in folder.iterdir()] == ["stack.h5"]
