"""A run of two stages: what it writes, and that stopping it anywhere changes nothing."""
import csv
import json
import shutil
import signal

import pytest
import torch
from matplotlib.image import imread
from safetensors import safe_open

from data import Volume
from data.phantom import write_phantom
from tests.znn.pipeline.small_run import RESOLUTION, SHAPE, Small, build, recursion, trainer
from znn.pipeline import checkpoint
from znn.pipeline.checkpoint import load, load_stages
from znn.pipeline.errors import CheckpointError, Interrupted, NonFiniteLoss, PipelineError
from znn.pipeline.inference import infer_volume
from znn.pipeline.interruption import Interruption, watched
from znn.pipeline.monitor import Monitor
from znn.pipeline.recursion import FINAL, LAST


class Stopping(Interruption):
    """Counts the calls of `check`; asks to stop at the n-th, n from 0."""

    def __init__(self, n=None):
        super().__init__()
        self.stop_at, self.checks = n, 0

    def check(self):
        if self.checks == self.stop_at:
            self.request(signal.SIGTERM)
        self.checks += 1
        super().check()


def train(run, stop_at=None, resume=False):
    return run.run(Monitor(Stopping(stop_at), hidden=True), resume)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    """A run without a stop: its folder, its final checkpoint, and at how many places it might have stopped."""
    folder, counting = tmp_path_factory.mktemp("runs") / "whole", Stopping()
    final = load(recursion(folder, root).run(Monitor(counting, hidden=True)))
    return folder, final, counting.checks


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def rows(folder):
    with open(folder / "curve.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k not in ("minutes", "voxels_per_s")} for row in csv.DictReader(file)]


def test_a_run_writes_what_it_says(whole):
    folder, (tensors, meta), _ = whole
    assert {p.name for p in folder.iterdir()} == {"last.safetensors", "best.safetensors", "final.safetensors",
                                                 "curve.csv", "curve.png", "previews", "maps"}
    assert [s["name"] for s in meta["stages"]] == ["plain", "again"]
    assert meta["stages"][1] == {"name": "again", "model": "Small", "options": {"recursive": True}}
    assert meta["normalisation"] == {"kind": "section"} and meta["recursion_scaling"] == "fixed"
    assert meta["resolution_zyx"] == [40.0, 4.0, 3.5]
    assert {k.partition("/")[0] for k in tensors} == {"plain", "again"}
    curve = rows(folder)
    assert [(r["stage"], r["step"]) for r in curve] == [(s, str(k)) for s in ("plain", "again") for k in (2, 4)]
    assert all(0 <= float(r[k]) for r in curve for k in ("loss", "select_loss", "pixel_error", "select_pixel_error"))
    assert {p.name for p in (folder / "previews").iterdir()} == {
        "plain-000004.png", "again-000004.png"}
    assert imread(folder / "previews" / "again-000004.png").shape[:2] == (41, 3 * 53 + 8)


def test_the_second_stage_reads_the_map_of_the_first(whole, root):
    folder = whole[0]
    stages, _ = load_stages(folder / FINAL, build)
    stack = recursion(folder, root).stacks[0]
    stored = Volume.open(folder / "maps" / "plain" / "phantom.h5", "volumes/predictions/boundary")
    assert stored.offset_zyx == stack.image.offset_zyx and stored.resolution_zyx == stack.image.resolution_zyx
    assert (stored.read() == infer_volume(stages[:1], stack.image).read()).all()


def test_a_map_belongs_to_the_voxels_it_was_made_from_wherever_they_lie(whole, root, tmp_path):
    stopped, elsewhere, other = (tmp_path / name for name in ("run", "moved", "other"))
    with pytest.raises(Interrupted):
        train(recursion(stopped, root), stop_at=int(0.8 * whole[2]))
    kept = stopped / "maps" / "plain" / "phantom.h5"
    first = kept.read_bytes()
    elsewhere.mkdir()
    shutil.copy(root / "stack.h5", elsewhere)
    with pytest.raises(Interrupted):
        train(recursion(stopped, elsewhere), stop_at=1, resume=True)
    assert kept.read_bytes() == first
    other.mkdir()
    write_phantom(other / "stack.h5", SHAPE, seed=4, resolution_zyx=RESOLUTION)
    run = recursion(stopped, other)
    train(run, resume=True)
    stored = Volume.open(kept, "volumes/predictions/boundary").read()
    stages, _ = load_stages(stopped / FINAL, build)
    assert (stored == infer_volume(stages[:1], run.stacks[0].image).read()).all() and kept.read_bytes() != first


def test_the_second_stage_starts_from_the_first(root, tmp_path):
    run = recursion(tmp_path, root, second=trainer(1, optimiser=trainer().optimiser.__class__(learning_rate=1e-30)))
    tensors, _ = load(train(run))
    assert torch.equal(tensors["plain/first.weight"], tensors["again/first.weight"])
    assert not torch.equal(tensors["plain/first.weight"], recursion(tmp_path, root).network(1).first.weight)


@pytest.mark.parametrize("part", [0.0, 0.15, 0.3, 0.4, 0.5, 0.6, 0.8, 0.999])
def test_stopped_anywhere_and_gone_on_with_it_ends_the_same(whole, root, tmp_path, part):
    """Between steps, in a validation, while maps are computed: wherever the run may stop."""
    folder, (tensors, _), safe_points = whole
    with pytest.raises(Interrupted):
        train(recursion(tmp_path, root), stop_at=int(part * safe_points))
    train(recursion(tmp_path, root), resume=True)
    assert same(load(tmp_path / FINAL)[0], tensors)
    assert same(load(tmp_path / LAST)[0], load(folder / LAST)[0])
    assert rows(tmp_path) == rows(folder)


def test_two_steps_and_two_more_are_four(whole, root, tmp_path):
    train(recursion(tmp_path, root, second=trainer(2)))
    train(recursion(tmp_path, root), resume=True)
    assert same(load(tmp_path / FINAL)[0], whole[1][0])


def test_two_steps_and_two_more_are_four_with_averaged_weights(root, tmp_path):
    settings = {"average_decay": 0.9, "select_by": "v_rand"}
    once, twice = tmp_path / "once", tmp_path / "twice"
    train(recursion(once, root, trainer(2, **settings), trainer(4, **settings)))
    train(recursion(twice, root, trainer(2, **settings), trainer(2, **settings)))
    train(recursion(twice, root, trainer(2, **settings), trainer(4, **settings)), resume=True)
    (tensors, meta), (again, meta_again) = load(once / FINAL), load(twice / FINAL)
    assert same(tensors, again) and same(load(once / LAST)[0], load(twice / LAST)[0])
    assert 0 < meta["threshold"] == meta_again["threshold"] < 1


@pytest.mark.parametrize("change", [{"seed": 6}, {"workers": 1}])
def test_a_seed_changes_the_weights_and_workers_do_not(whole, root, tmp_path, change):
    train(recursion(tmp_path, root, **change))
    assert same(load(tmp_path / FINAL)[0], whole[1][0]) == ("workers" in change)


def test_the_state_of_a_run_is_usable_and_holds_no_pickle(whole):
    stages, meta = load_stages(whole[0] / LAST, build)
    assert [name for name, _ in stages] == ["plain", "again"]
    assert meta["training"]["stage"] == "again" and meta["training"]["progress"]["step"] == 4
    with safe_open(whole[0] / LAST, "pt") as file:
        assert json.loads(file.metadata()["znn"])["training"] == meta["training"]
        assert any(key.startswith("training/optimiser/momentum_buffer/") for key in file.keys())


def test_a_state_of_other_stages_is_refused(whole, root, tmp_path):
    run = recursion(tmp_path, root)
    (tmp_path / LAST).write_bytes((whole[0] / FINAL).read_bytes())
    with pytest.raises(CheckpointError, match="plain, again"):
        train(run, resume=True)


@pytest.mark.parametrize("change, found", [
    (lambda h: h.update(training="again"), "expected a stage and its progress, found 'again'"),
    (lambda h: h["training"].pop("stage"), "expected a stage and its progress, found"),
    (lambda h: h["training"].update(progress=[4]), "expected a stage and its progress, found"),
    (lambda h: h["training"]["progress"].pop("step"), "found no step"),
    (lambda h: h["training"]["progress"].update(step="four"), "found step='four'"),
    (lambda h: h["training"]["progress"].update(step=-1), "found step=-1"),
    (lambda h: h["training"]["progress"].update(best="low", epoch=2), "found best='low', epoch=2"),
    (lambda h: h["training"]["progress"].update(window={"loss": None}), "found window.loss=None"),
])
def test_a_damaged_state_is_refused(whole, root, tmp_path, change, found):
    tensors, header = load(whole[0] / LAST)
    change(header)
    run = recursion(tmp_path, root)
    checkpoint.save(tmp_path / LAST, tensors, header)
    with pytest.raises(CheckpointError, match=r"last\.safetensors: its header is damaged: .*another name") as error:
        train(run, resume=True)
    assert found in str(error.value)


def test_the_best_weights_by_validation_go_on(root, tmp_path, monkeypatch):
    scores = iter([0.2, 0.1, 0.3, 0.2, 0.2, 0.1])
    monkeypatch.setattr("znn.pipeline.recursion.selection_scores",
                        lambda *_: {"loss": 1.0, "pixel_error": next(scores)})
    run = recursion(tmp_path, root, first=trainer(6), second=trainer(6))
    seen = {}

    class Watch(Monitor):
        def selected(self, training, scores, improved):
            super().selected(training, scores, improved)
            seen[self.stage, training.progress.step] = {k: t.clone() for k, t in training.network.state_dict().items()}

    tensors, _ = load(run.run(Watch(Interruption(), hidden=True)))
    assert all(torch.equal(tensors[f"plain/{k}"], t) for k, t in seen["plain", 4].items())
    assert all(torch.equal(tensors[f"again/{k}"], t) for k, t in seen["again", 6].items())
    assert not torch.equal(tensors["plain/last.bias"], seen["plain", 6]["last.bias"])


def test_a_loss_that_is_not_finite_stops_with_the_place_and_saves_nothing_bad(root, tmp_path, monkeypatch):
    forward, count = Small.forward, iter(range(100))

    def bad(self, x):
        y = forward(self, x)
        return y * float("nan") if self.training and next(count) == 3 else y

    monkeypatch.setattr(Small, "forward", bad)
    with pytest.raises(NonFiniteLoss, match=r"step 3: .*found nan.*stack.h5:volumes/raw, target at voxel \(\d+, "):
        train(recursion(tmp_path, root))
    tensors, meta = load(tmp_path / LAST)
    assert meta["training"]["progress"]["step"] == 3 and all(t.isfinite().all() for t in tensors.values())


def test_wrong_chains_are_refused_before_any_training(root, tmp_path):
    run = recursion(tmp_path, root)
    with pytest.raises(PipelineError, match=r"stages.again: expected a network of 1 input channels"):
        type(run)(tmp_path, {"again": run.stages["again"]}, run.data, run.stacks, build, None)
    with pytest.raises(PipelineError, match="at least one stage"):
        type(run)(tmp_path, {}, run.data, run.stacks, build, None)
    with pytest.raises(ValueError, match="no patch fits"):
        recursion(tmp_path, root, second=trainer(patch=[9, 9, 9]))
    assert not list(tmp_path.glob("*.safetensors"))


def test_signals_are_noted_while_watched_and_given_back_after():
    before = signal.getsignal(signal.SIGTERM)
    with watched() as interruption:
        interruption.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            interruption.check()
    assert signal.getsignal(signal.SIGTERM) is before
    with watched() as interruption, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        assert interruption.signal == signal.SIGINT
        signal.raise_signal(signal.SIGINT)
