"""Training of one network on patches: a step, when what is due, and a state that is saved and gone on with exactly.

Everything random is a function of (seed, step): the patch (by `data.PatchSampler`) and the dropout mask (torch's
generator is seeded before every step). So a state is the weights, the optimiser's tensors and a few numbers::

    due work (validation, preview, checkpoint) -> step -> due work -> step -> ...
         the only places where a run stops: before or after a step, never within one
"""
import contextlib
import math
import time

import numpy as np
import torch

from data.errors import WorkerDied
from data.workers import patches
from znn.pipeline.errors import Interrupted, NonFiniteLoss
from znn.pipeline.optimiser import optimiser_tensors, restore_optimiser
from znn.pipeline.progress import Progress
from znn.pipeline.selection import better
from znn.pipeline.trainer import preview_due
from znn.pipeline.weight_average import WeightAverage


def derived_seed(*parts):
    """A 63-bit seed from several non-negative integers, far from that of any others."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


class Listener:
    """What a training tells; each method may be overridden.

    `check` is called wherever stopping is safe, and stops by raising `Interrupted`.
    """

    def check(self):
        """Raise `Interrupted` to stop here."""

    def stepped(self, training, outcome):
        """A step was made."""

    def logged(self, training, row):
        """A point of the learning curve: a dict of numbers."""

    def selected(self, training, scores, improved):
        """A validation: its scores, and whether they are the best so far."""

    def preview(self, training):
        """A preview picture is due."""

    def save(self, training):
        """A checkpoint is due."""


class StageTraining:
    """One network in training.

    Parameters
    ----------
    network : torch.nn.Module
    sampler : data.PatchSampler
    loss : callable
        ``loss(logits, target) -> Outcome``, such as `loss.BoundaryLoss`.
    trainer : Trainer
    seed : int
        Of the dropout masks.
    validate : callable, optional
        ``validate(network) -> {"loss": ..., "pixel_error": ...}``; without it the last weights are the best.
    workers : int
        Processes that prepare patches.
    clock : callable
        Seconds.
    trained : bool
        The network begins with trained weights, which are validated too, before the first step.

    Attributes
    ----------
    progress : Progress
    best_state : dict of str to Tensor, or None
        Weights of the best validation so far.
    average : WeightAverage or None
    """

    def __init__(self, network, sampler, loss, trainer, seed, validate=None, workers=0, clock=time.monotonic,
                 trained=False):
        self.network, self.sampler, self.loss, self.trainer = network, sampler, loss, trainer
        self.seed, self.validate, self.workers, self.clock, self.trained = seed, validate, workers, clock, trained
        self.optimiser = trainer.optimiser.over(network.parameters())
        self.progress, self.best_state = Progress(), None
        self.average = WeightAverage(trainer.average_decay) if trainer.average_decay else None

    @property
    def share(self):
        """How much of the stage has passed, by steps or by time, whichever is further; 1 at the end."""
        by_time = self.progress.seconds / (60 * self.trainer.max_minutes) if self.trainer.max_minutes else 0.0
        return max(self.progress.step / self.trainer.steps, by_time)

    @property
    def finished(self):
        return self.share >= 1

    @property
    def voxels_per_step(self):
        """Output voxels that a step learns from."""
        return math.prod(self.trainer.patch) * self.trainer.patches_per_step

    def tensors(self):
        """Weights, optimiser's state, best and averaged weights: ``weights/...``, ``optimiser/...``, ..."""
        parts = {"weights": self.network.state_dict(), "optimiser": optimiser_tensors(self.optimiser, self.network),
                 "best": self.best_state or {}, "average": self.average.state if self.average else {}}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def restore(self, progress, optimiser, best, average=None):
        """Go on from a state; the network holds its weights already. An average that was not kept begins anew."""
        self.progress = Progress(**progress)
        restore_optimiser(self.optimiser, self.network, optimiser)
        self.best_state = best or None
        if self.average:
            self.average.state = {name: tensor.clone() for name, tensor in (average or {}).items()}

    def chosen_state(self):
        """The weights to go on with: the best by validation, else the last."""
        return self.best_state or self.judged_state()

    def judged_state(self):
        """A copy of the weights that are judged and kept now: their average where there is one."""
        return _copy(self.average.state if self.average and self.average.state else self.network.state_dict())

    @contextlib.contextmanager
    def judged(self):
        """The network with the weights of `judged_state`, as long as the context lasts."""
        trained = _copy(self.network.state_dict())
        self.network.load_state_dict(self.judged_state())
        try:
            yield self.network
        finally:
            self.network.load_state_dict(trained)

    def run(self, listener):
        """Train to the end of the stage.

        Raises
        ------
        Interrupted
            When `listener.check` says so; the state is saved before.
        NonFiniteLoss
            The weights are those from before the step that failed; nothing is saved.
        """
        try:
            with contextlib.closing(self._patches()) as prepared:
                began = self.clock() - self.progress.seconds
                while True:
                    self._due_work(listener)
                    if self.finished:
                        break
                    self._step(self._next(prepared, listener), listener)
                    self.progress.seconds = self.clock() - began
                    listener.check()
        except Interrupted:
            listener.save(self)
            raise
        listener.save(self)

    def _next(self, prepared, listener):
        """The patches of a step; a request to stop, which may have ended a worker too, goes before its death."""
        try:
            return next(prepared)
        except WorkerDied:
            listener.check()
            raise

    def _patches(self):
        n = self.trainer.patches_per_step
        source = patches(self.sampler, self.progress.step * n, self.trainer.steps * n, self.workers)
        with contextlib.closing(source):
            while True:
                began = self.clock()
                batch = [next(source) for _ in range(n)]
                self.progress.waited += self.clock() - began
                yield batch

    def _due_work(self, listener):
        p, t = self.progress, self.trainer
        due = (p.step or self.trained) and (p.step % t.select_every == 0 or self.finished)
        if self.validate and due and p.selected_at != p.step:
            self._select(listener)
        if p.previewed_at != p.step and (preview_due(p.step, t.preview_every) or self.finished):
            listener.preview(self)
            p.previewed_at = p.step
        if p.step and p.step % t.save_every == 0:
            listener.save(self)

    def _select(self, listener):
        with self.judged() as network:
            scores = self.validate(network)
        p, by = self.progress, self.trainer.select_by
        value, p.selected_at = scores[by], p.step
        improved = better(by, value, p.best if p.best_by == by else None)
        if improved:
            p.best, p.best_by, p.best_step = value, by, p.step
            self.best_state = self.judged_state()
        listener.selected(self, scores, improved)

    def _step(self, batch, listener):
        p, began = self.progress, self.clock()
        rate = self.trainer.optimiser.learning_rate * self.trainer.schedule.scale(p.step, self.share)
        outcome = self._update(batch, rate)
        p.step += 1
        if self.average:
            self.average.update(self.network.state_dict(), p.step)
        for key, value in (("loss", outcome.cost), ("pixel_error", outcome.pixel_error), ("steps", 1),
                           ("voxels", self.voxels_per_step), ("busy", self.clock() - began)):
            p.window[key] = p.window.get(key, 0) + value
        listener.stepped(self, outcome)
        if p.step % self.trainer.log_every == 0 or p.step == self.trainer.steps:
            listener.logged(self, self._point(rate))
            p.window = {}

    def _point(self, rate):
        p, w = self.progress, self.progress.window
        return {"step": p.step, "minutes": p.seconds / 60, "learning_rate": rate, "loss": w["loss"] / w["steps"],
                "pixel_error": w["pixel_error"] / w["steps"], "voxels_per_s": w["voxels"] / max(w["busy"], 1e-9)}

    def _update(self, batch, rate):
        """Forward, backward and the move of the weights on some patches; their `Outcome`."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        images = torch.from_numpy(np.stack([patch.image for patch in batch]))
        targets = torch.from_numpy(np.stack([patch.target for patch in batch]))
        self.network.train()
        self.optimiser.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, self.progress.step))
            outcome = self.loss(self.network(images), targets)
        self._check_finite("loss", outcome.cost, batch)
        outcome.objective.backward()
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self._check_finite("gradient", float(norm), batch)
        if self.trainer.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.network.parameters(), self.trainer.clip_norm, norm)
        self.optimiser.step()
        return outcome

    def _check_finite(self, what, value, batch):
        if not math.isfinite(value):
            places = "; ".join(patch.where for patch in batch)
            raise NonFiniteLoss(f"step {self.progress.step}: expected a finite {what}, found {value}, on {places}. "
                                "The checkpoints from before are good: look at the data there, or go on from them with "
                                "a smaller learning_rate or with clip_norm")


def _copy(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}
