"""When things are due, when a stage ends, and what a point of the curve and a picture hold."""
import itertools
import signal
import sys

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from data import Augmentation, PatchSampler
from data.errors import WorkerDied
from tests.znn.pipeline.small_run import Small, data, trainer
from znn.pipeline.curves import LearningCurve, write_preview
from znn.pipeline.errors import Interrupted, OutputNotWritable, PipelineError, WrongSetting
from znn.pipeline.interruption import Interruption
from znn.pipeline.loss import Balance, BoundaryLoss
from znn.pipeline.monitor import Monitor
from znn.pipeline.optimiser import Optimiser, Schedule
from znn.pipeline.stacks import open_stacks
from znn.pipeline.trainer import Trainer, preview_due
from znn.pipeline.training import Listener, StageTraining, derived_seed


class Clock:
    """Ten seconds later at every look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 10
        return self.now


class Notes(Listener):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def logged(self, training, row):
        self.told.append(("logged", training.progress.step, row))

    def selected(self, training, scores, improved):
        self.told.append(("selected", training.progress.step, improved))

    def save(self, training):
        self.told.append(("saved", training.progress.step))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return [stack.training for stack in open_stacks(data(tmp_path_factory.mktemp("data")))]


def stage(sources, settings, **options):
    torch.manual_seed(0)
    network = Small()
    output = tuple(settings.patch)
    shape = tuple(o + f - 1 for o, f in zip(output, network.field_of_view))
    sampler = PatchSampler(sources, shape, output, Augmentation(), seed=1, mirror=True)
    return StageTraining(network, sampler, BoundaryLoss(Balance(), (3, 1)), settings, seed=2, **options)


def test_events_come_when_they_are_due(sources):
    scores = iter([0.5, None, 0.4, 0.4])
    training = stage(sources, trainer(7, select_every=2, log_every=3, save_every=5, select_by="loss"),
                     validate=lambda network: {"loss": next(scores), "pixel_error": None})
    notes = Notes()
    training.run(notes)
    assert [told[:2] for told in notes.told] == [
        ("selected", 2), ("logged", 3), ("selected", 4), ("saved", 5), ("logged", 6), ("selected", 6), ("logged", 7),
        ("selected", 7), ("saved", 7)]
    assert [told[2] for told in notes.told if told[0] == "selected"] == [True, False, True, False]
    assert (training.progress.best, training.progress.best_step) == (0.4, 6)
    row = notes.told[1][2]
    assert row["step"] == 3 and np.isfinite(row["loss"]) and 0 <= row["pixel_error"] <= 1 and row["voxels_per_s"] > 0


def test_a_stage_ends_when_its_time_is_over_and_the_rate_has_fallen(sources):
    settings = trainer(1000, max_minutes=4, log_every=1, optimiser=Optimiser("adam", 1.0),
                       schedule=Schedule("cosine", final_fraction=0.0))
    training, notes = stage(sources, settings, clock=Clock()), Notes()
    training.run(notes)
    rates = [told[2]["learning_rate"] for told in notes.told if told[0] == "logged"]
    assert training.finished and training.progress.step < 10
    assert 4 * 60 <= training.progress.seconds < 5 * 60
    assert rates[0] == 1 and all(a > b for a, b in itertools.pairwise(rates)) and rates[-1] < 0.2
    assert 0 < training.progress.waited < training.progress.seconds


def test_time_of_an_earlier_session_counts(sources):
    training = stage(sources, trainer(1000, max_minutes=4), clock=Clock())
    training.restore({"step": 3, "seconds": 239.0}, {}, {})
    training.run(Notes())
    assert training.progress.step == 4


def test_several_patches_are_one_step_and_a_gradient_is_clipped(sources):
    settings = trainer(1, patches_per_step=3, clip_norm=1e-3, optimiser=Optimiser("sgd", 1.0, momentum=0.0))
    training = stage(sources, settings)
    before = {k: t.clone() for k, t in training.network.state_dict().items()}
    training.run(Notes())
    moved = [t - before[k] for k, t in training.network.state_dict().items()]
    assert torch.stack([m.square().sum() for m in moved]).sum().sqrt() == pytest.approx(1e-3, rel=1e-3)
    assert training.voxels_per_step == 3 * 6 * 9


def test_training_learns_and_leaves_the_callers_randomness_alone(sources):
    training, notes = stage(sources, trainer(60, log_every=20, optimiser=Optimiser("adam", 0.02))), Notes()
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    training.run(notes)
    assert torch.equal(torch.rand(2), expected)
    losses = [told[2]["loss"] for told in notes.told if told[0] == "logged"]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("asked, error, saved", [(True, Interrupted, [("saved", 0)]), (False, WorkerDied, [])])
def test_a_worker_that_a_request_to_stop_ended_does_not_keep_from_saving(sources, monkeypatch, asked, error, saved):
    notes, interruption = Notes(), Interruption()
    notes.check = interruption.check

    def dying(*_):
        if asked:
            interruption.request(signal.SIGTERM)
        raise WorkerDied("gone")
        yield

    monkeypatch.setattr("znn.pipeline.training.patches", dying)
    with pytest.raises(error):
        stage(sources, trainer(3)).run(notes)
    assert notes.told == saved


def test_previews_come_early_and_then_evenly():
    assert [step for step in range(1700) if preview_due(step, 800)] == [50, 100, 200, 400, 800, 1600]
    assert [step for step in range(4) if preview_due(step, 1)] == [1, 2, 3]


def test_derived_seeds_differ():
    seeds = {derived_seed(seed, stage, use) for seed in range(5) for stage in range(3) for use in range(3)}
    assert len(seeds) == 45 and all(0 <= seed < 2 ** 63 for seed in seeds)


@pytest.mark.parametrize("bad", [{"patch": [1, 2]}, {"patch": [1, 0, 2]}, {"steps": 0}, {"max_minutes": 0.0},
                                 {"clip_norm": -1.0}, {"select_by": "v_ran"}, {"average_decay": 1.0},
                                 {"save_every": 0}])
def test_trainers_without_meaning_are_refused(bad):
    with pytest.raises(WrongSetting, match=r"trainer .*expected"):
        Trainer(**bad)


def test_a_curve_is_read_back_up_to_where_a_run_goes_on(tmp_path):
    curve = LearningCurve(tmp_path)
    for name in ("one", "two"):
        for step in (2, 4):
            curve.add(name, {"step": step, "loss": step / 3, "minutes": 0.1, "learning_rate": 1e-5})
        curve.add(name, {"step": 4, "select_loss": 0.25})
    assert len(curve.rows) == 4 and curve.rows[1]["loss"] == 4 / 3 and curve.rows[1]["select_loss"] == 0.25
    curve.write()
    curve.draw()
    assert LearningCurve.read(tmp_path, "two", 4, ["one"]).rows == curve.rows
    assert LearningCurve.read(tmp_path, "two", 3, ["one"]).rows == curve.rows[:3]
    assert LearningCurve.read(tmp_path, "one", 2).rows == curve.rows[:1]
    assert imread(tmp_path / "curve.png").shape[:2] == (400, 900)
    with pytest.raises(OutputNotWritable, match=r"none.curve\.csv: cannot write"):
        LearningCurve(tmp_path / "none").write()


def test_a_preview_shows_raw_target_and_prediction_side_by_side(tmp_path):
    raw = np.linspace(-3, 9, 35).reshape(5, 7)
    target = np.zeros((5, 7), np.uint8)
    target[0], target[1] = 1, 255
    write_preview(tmp_path / "previews" / "a.png", raw, target, np.full((5, 7), 0.25, np.float32))
    picture = imread(tmp_path / "previews" / "a.png")[..., 0]
    assert picture.shape == (5, 7 + 4 + 7 + 4 + 7)
    assert picture[0, 0] == 0 and picture[4, 6] == 1 and (np.diff(picture[:, :7]) >= 0).all()
    assert (picture[0, 11:18] == 1).all() and (picture[2:, 11:18] == 0).all()
    assert picture[1, 11:18] == pytest.approx(0.5, abs=0.01) and picture[:, 22:] == pytest.approx(0.25, abs=0.01)


def test_tensorboard_that_is_not_installed_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PipelineError, match=r"znn\[log\]"):
        Monitor(Interruption(), tensorboard=True)


def test_the_average_of_the_weights_is_what_is_judged_and_kept(sources):
    judged = []
    settings = trainer(6, average_decay=0.5, select_every=3, optimiser=Optimiser("sgd", 0.1))

    class Steps(Notes):
        def stepped(self, training, outcome):
            weights.append(training.network.last.bias.detach().clone())

    weights = []
    training = stage(sources, settings, validate=lambda network: judged.append(network.last.bias.detach().clone())
                     or {"loss": 1.0, "pixel_error": 1 / len(judged)})
    training.run(Steps())
    expected = weights[0]
    for step, bias in enumerate(weights[1:], 2):
        expected = expected + (1 - min(0.5, (1 + step) / (10 + step))) * (bias - expected)
    assert torch.allclose(judged[-1], expected, atol=1e-6) and not torch.allclose(expected, weights[-1])
    assert torch.equal(training.network.last.bias, weights[-1])
    assert torch.equal(training.chosen_state()["last.bias"], judged[-1])


def test_a_run_that_is_chosen_by_another_score_from_now_on_forgets_the_best_so_far(sources):
    training = stage(sources, trainer(4, select_every=2, select_by="v_rand"),
                     validate=lambda network: {"loss": 1.0, "pixel_error": 0.1, "v_rand": 0.5})
    training.restore({"step": 1, "best": 0.9, "best_by": "v_info", "best_step": 1}, {}, {})
    training.run(Notes())
    assert (training.progress.best, training.progress.best_by, training.progress.best_step) == (0.5, "v_rand", 2)
