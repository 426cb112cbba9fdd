"""Shows and keeps what a run of training does: bar, learning curve, previews, checkpoints; and stops it on request."""
import contextlib

from tqdm import tqdm

from znn.pipeline.curves import PREVIEW_SIDE, LearningCurve, tensorboard_writer, write_preview
from znn.pipeline.meter import Meter
from znn.pipeline.stacks import target_in, window
from znn.pipeline.training import Listener

BAR = "{percentage:3.0f}%|{bar:16}| {desc}"
SMOOTHING = 0.05


class Monitor(Listener):
    """The listener of a `recursion.Recursion`.

    Parameters
    ----------
    interruption : interruption.Interruption
    hidden : bool
        No bar.
    tensorboard : bool
        Also write events into the folder of the run.

    Attributes
    ----------
    trained : dict of str to training.StageTraining
        The stages since the start or resume.
    """

    def __init__(self, interruption, hidden=False, tensorboard=False):
        self.interruption, self.hidden = interruption, hidden
        self.writer = tensorboard_writer() if tensorboard else None
        self.check = interruption.check
        self.bar, self.events, self.smooth, self.trained = None, None, {}, {}

    def begin(self, run, fit, training):
        """A network, a `crossfit.Fit`, begins to be trained, or goes on."""
        self.close()
        self.run, self.fit, self.stage = run, fit, fit.label
        self.curve = LearningCurve.read(run.folder, self.stage, training.progress.step, list(run.finished))
        self.smooth, self.trained[self.stage] = {}, training
        self.bar = tqdm(total=1.0, initial=min(1.0, training.share), desc=self.stage, bar_format=BAR,
                        disable=self.hidden, dynamic_ncols=True)
        if self.writer is not None and self.events is None:
            self.events = self.writer(str(run.folder / "events"))

    def close(self):
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()

    def stepped(self, training, outcome):
        for name, value in (("loss", outcome.cost), ("pixel error", outcome.pixel_error)):
            self.smooth[name] = (1 - SMOOTHING) * self.smooth.get(name, value) + SMOOTHING * value
        self._show(training)

    def _show(self, training):
        p, share = training.progress, training.share
        speed = p.window["voxels"] / max(p.window["busy"], 1e-9)
        left = tqdm.format_interval(p.seconds * (1 - share) / share) if p.seconds and share < 1 else "0:00"
        scores = ", ".join(f"{name} {value:.3f}" for name, value in self.smooth.items())
        best = "" if p.best is None else f", best {p.best:.4f} at {p.best_step}"
        text = f"{self.stage} step {p.step}: {scores}{best}, {speed / 1000:.3g} kvoxel/s, {left} left"
        self.bar.set_description_str(text, refresh=False)
        self.bar.update(min(1.0, share) - self.bar.n)

    def logged(self, training, row):
        self._add(training.progress.step, row)

    def selected(self, training, scores, improved):
        self._add(training.progress.step, {"step": training.progress.step}
                  | {f"select_{name}": value for name, value in scores.items() if value is not None})
        if improved:
            self.run.save_best(self.fit, training)

    def _add(self, step, row):
        self.curve.add(self.stage, row)
        for name, value in row.items() if self.events is not None else ():
            self.events.add_scalar(f"{self.stage}/{name}", value, step)

    def preview(self, training):
        """Draw one section of the first stack that selects, or else trains, as <stage>-<step>.png; and the curve."""
        stack = next((s for s in self.run.stacks if s.selection is not None), self.run.stacks[0])
        source = stack.selection or stack.training
        region = window(source, PREVIEW_SIDE)
        with training.judged() as network:
            probability = self.run.predict(self.fit.index, network, stack, region, self.validating)
        write_preview(self.run.folder / "previews" / f"{self.stage}-{training.progress.step:06d}.png",
                      stack.image.read(region)[0], target_in(source, region)[0], probability[0])
        self.curve.draw()

    def save(self, training):
        self.run.save_state(self.fit, training)
        self.curve.write()
        if self.events is not None:
            self.events.flush()

    def validating(self, stage, voxels, kept):
        """The progress of a validation: a place where stopping is safe."""
        self.check()

    @contextlib.contextmanager
    def mapping(self, stage, stack):
        """A progress for computing the map of a stack, with a bar of its own."""
        self.close()
        label = f"map of {stage} over {stack.name}"
        with Meter({label: stack.image.roi.size}, self.hidden) as meter:
            def progress(name, voxels, kept):
                if name == stage:
                    meter(label, voxels, kept)
                self.check()

            yield progress

    def summary(self):
        """Lines that say for each stage since the start or resume how far it came, how good, how fast."""
        for name, training in self.trained.items():
            p = training.progress
            score = "" if p.best is None else f", best {training.trainer.select_by} {p.best:.4f} at step {p.best_step}"
            speed = p.step * training.voxels_per_step / max(p.seconds, 1e-9)
            yield (f"{name}: {p.step} steps in {p.seconds / 60:.1f} min{score}; {speed / 1000:.3g} kvoxel/s in all, "
                   f"{p.waited / max(p.seconds, 1e-9):.1%} of the time waiting for patches")
