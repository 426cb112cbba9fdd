"""Recursive training: each stage learns from the image and the boundary map of the stage before.

::

    stage 1, trained on the image --> best weights --> maps of all training stacks
                                          |                      |
                                     same layers            second input
                                          v                      v
                                      stage 2, trained on image and map --> final.safetensors: both stages

The whole run is a function of its settings: every random number is derived from (seed, stage, step). Its state is one
file, ``last.safetensors``, from which it goes on as if it had never stopped, within a stage or between two.
"""
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from data import PatchSampler, class_counts
from data.errors import NoValidPosition
from znn.pipeline import checkpoint
from znn.pipeline.beginning import initial_states
from znn.pipeline.crossfit import fits, outside, parts, regions
from znn.pipeline.errors import CheckpointError, PipelineError, not_negative
from znn.pipeline.inference import MemoryStore, infer_volume
from znn.pipeline.loss import BoundaryLoss
from znn.pipeline.maps import keep_map, kept_map, made_from, map_digest
from znn.pipeline.memory import GB
from znn.pipeline.planning import plan
from znn.pipeline.progress import check_state
from znn.pipeline.selection import chosen_threshold, selection_scores
from znn.pipeline.stacks import labelled_region, target_in
from znn.pipeline.training import StageTraining, derived_seed

LAST, BEST, FINAL = "last.safetensors", "best.safetensors", "final.safetensors"
STATE = "training"
SAMPLING, WEIGHTS, DROPOUT = range(3)


class Recursion:
    """A run of all stages.

    Parameters
    ----------
    folder : str or Path
        Of the run; exists.
    stages : dict of str to stages.StageSettings
        In order.
    data : stacks.TrainingData
    stacks : list of stacks.LabelledStack
    build : callable
        ``build(name, options) -> network``
    transfer : callable
        ``transfer(state, network) -> names of the copied layers``
    seed : int
    config : dict
        Kept in the checkpoints.
    memory_budget : float
        Bytes of a block when maps are computed.
    init : str or Path, optional
        A checkpoint: stages that it has too begin with its weights, see `beginning.initial_states`.
    """

    def __init__(self, folder, stages, data, stacks, build, transfer, seed=0, config=None, memory_budget=GB, init=None):
        self.folder, self.stages, self.data, self.stacks = Path(folder), stages, data, stacks
        self.build, self.transfer, self.seed, self.memory_budget = build, transfer, int(seed), memory_budget
        self.names = list(stages)
        self.about = {"normalisation": data.standardisation.to_dict(), "recursion_scaling": data.recursion_scaling,
                      "resolution_zyx": list(stacks[0].raw.resolution_zyx), "config": config or {}}
        self.finished = {}                                        # label of a fit -> chosen state, in order
        self.maps = {stack.name: {} for stack in stacks}          # stack -> stage -> Volume
        self.init, self.initial = init, {}                        # stage -> state to begin with
        self._check()
        self.fits = fits(stages)
        for fit in self.fits:
            self._check_patches(fit)
        self.counts = class_counts([stack.training for stack in stacks])

    def _check(self):
        """What can be known before hours of work: names, channels, and whether patches and maps fit into the stacks."""
        not_negative("seed", self.seed)
        not_negative("data.workers", self.data.workers)
        if not self.names:
            raise PipelineError("stages: expected at least one stage, found none; choose an experiment")
        if STATE in self.names:
            raise PipelineError(f"stages: {STATE!r} cannot be the name of a stage; choose another")
        for i, name in enumerate(self.names):
            network, channels = self.network(i), min(i, 1) + 1
            if network.in_channels != channels:
                reads = "the image and the map of the stage before" if i else "the image alone"
                raise PipelineError(f"stages.{name}: expected a network of {channels} input channels, since it reads "
                                    f"{reads}, found {self.stages[name].model.name} of {network.in_channels}; "
                                    "only a stage after the first is recursive")
        if self.init is not None:
            self.initial = initial_states(self.init, self.names, self.about)
        chain = [(name, self.network(i)) for i, name in enumerate(self.names)]
        for name, network in chain:
            if name in self.initial:
                self._begin_with(name, network)
        for stack in self.stacks:
            plan(chain, stack.image, memory_budget=self.memory_budget, known=self.names)

    def _check_patches(self, fit):
        try:
            self._sampler(fit, self._sources(fit))
        except NoValidPosition as error:
            if fit.fold is None:
                raise
            raise PipelineError(f"stages.{self.names[fit.index]}.folds: {fit.label} is trained on what is left of each "
                                f"stack without part {fit.fold + 1}, where no patch fits ({error}); give fewer folds, "
                                "or a thinner patch") from error

    def network(self, index):
        """A fresh network of a stage, the same every time."""
        model = self.stages[self.names[index]].model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, index, WEIGHTS))
            return self.build(model.name, dict(model.options))

    def _begin_with(self, name, network):
        checkpoint.fill(network, self.initial[name], f"init={self.init}: stage {name}")

    def _sources(self, fit):
        """What a network may see of the stacks, without the maps of earlier stages."""
        if fit.fold is None:
            return [stack.training for stack in self.stacks]
        folds = self.stages[self.names[fit.index]].folds
        return [source for stack in self.stacks for source in outside(stack.training, parts(stack, folds)[fit.fold])]

    def _sampler(self, fit, sources):
        output = tuple(self.stages[self.names[fit.index]].trainer.patch)
        shape = tuple(o + f - 1 for o, f in zip(output, self.network(fit.index).field_of_view))
        return PatchSampler(sources, shape, output, self.data.augmentation,
                            seed=derived_seed(self.seed, fit.index, SAMPLING), mirror=self.data.mirror,
                            recursion_scaling=self.data.recursion_scaling)

    def run(self, listener, resume=False):
        """Train what is left to train.

        Parameters
        ----------
        listener : monitor.Monitor
            Or another `training.Listener` with the methods that are called here.
        resume : bool
            Go on from last.safetensors, where there is one.

        Returns
        -------
        Path
            Of final.safetensors.
        """
        state = self._read_state() if resume and (self.folder / LAST).is_file() else None
        first = len(self.finished)
        for number, fit in enumerate(self.fits[first:]):
            self._train(fit, None if number else state, listener)
        for earlier in range(len(self.names) - 1):
            self._fill_maps(earlier, listener)
        path = self.folder / FINAL
        chosen = {name: self.finished[name] for name in self.names}
        checkpoint.save(path, *self.contents(chosen, {"threshold": self._threshold(listener)}))
        return path

    def _train(self, fit, state, listener):
        index, name = fit.index, self.names[fit.index]
        settings, network = self.stages[name], self.network(index)
        if state is None and name in self.initial:
            self._begin_with(name, network)
        elif state is None and index and settings.start_from_previous:
            self.transfer(self.finished[fit.before], network)
        if state is not None:
            checkpoint.fill(network, state["weights"], f"{self.folder / LAST}: stage {fit.label}")
        for earlier in range(index):
            self._fill_maps(earlier, listener)
        sources = self._sources(fit)
        if index:
            maps = {stack.image: self.maps[stack.name].get(self.names[index - 1]) for stack in self.stacks}
            sources = [source.with_map(maps[source.raw]) for source in sources]
        loss = BoundaryLoss(settings.trainer.balance, self.counts)
        training = StageTraining(
            network, self._sampler(fit, sources), loss, settings.trainer,
            derived_seed(self.seed, index, DROPOUT), self._validation(index, listener), self.data.workers,
            trained=name in self.initial)
        if state is not None:
            training.restore(state["progress"], state["optimiser"], state["best"], state["average"])
        listener.begin(self, fit, training)
        training.run(listener)
        self.finished[fit.label] = training.chosen_state()

    def contents(self, states, extra=None):
        """Tensors and header of a checkpoint of some fits, ``{label: state}`` in order; the header names the stages."""
        models = {name: self.stages[name].model for name in states if name in self.names}
        stages = [{"name": name, "model": m.name, "options": dict(m.options)} for name, m in models.items()]
        tensors = {f"{name}/{key}": tensor for name, state in states.items() for key, tensor in state.items()}
        return tensors, self.about | {"stages": stages} | (extra or {})

    def save_state(self, fit, training):
        """Write last.safetensors: all that going on needs; its stages can be used like those of a finished run."""
        tensors, header = self.contents(self.finished | {fit.label: training.network.state_dict()},
                                        {STATE: {"stage": fit.label, "progress": asdict(training.progress)}})
        kept = {f"{STATE}/{key}": tensor for key, tensor in training.tensors().items()}
        checkpoint.save(self.folder / LAST, tensors | kept, header)

    def save_best(self, fit, training):
        """Write best.safetensors: the finished stages and the best weights of this one; not for a fold."""
        if fit.fold is None:
            states = {name: self.finished[name] for name in self.names[:fit.index]}
            checkpoint.save(self.folder / BEST, *self.contents(states | {fit.label: training.chosen_state()}))

    def _read_state(self):
        """Fill `finished` from last.safetensors; weights, optimiser state, best weights and progress of its stage."""
        tensors, header = checkpoint.load(self.folder / LAST)
        where = header.get(STATE)
        stage = where and check_state(where, self.folder / LAST)
        labels = [fit.label for fit in self.fits]
        if stage not in labels:
            raise CheckpointError(f"{self.folder / LAST}: expected the state of a run with stages "
                                  f"{', '.join(labels)}, found {stage}; start a run of its own")
        self.finished = {label: checkpoint.stage_tensors(tensors, label) for label in labels[:labels.index(stage)]}
        kept = checkpoint.stage_tensors(tensors, STATE)
        return {"weights": checkpoint.stage_tensors(tensors, where["stage"]), "progress": where["progress"]} | {
            part: checkpoint.stage_tensors(kept, part) for part in ("optimiser", "best", "average")}

    def _fill_maps(self, index, listener):
        """Make sure of the maps of a finished stage over all stacks; in files, for when it is resumed."""
        name = self.names[index]
        states = {fit.fold: self.finished[fit.label] for fit in self.fits if fit.index == index}
        for stack in self.stacks:
            digest = map_digest(states, stack.raw)
            path = self.folder / "maps" / name / f"{stack.name}.h5"
            if not made_from(path, digest):
                with listener.mapping(name, stack) as progress:
                    values = [self.predict(index, self._filled(index, states[fold]), stack, region, progress)
                              for region, fold in self._regions(index, stack)]
                keep_map(path, stack.image.over(np.concatenate(values)), digest)
            self.maps[stack.name][name] = kept_map(path, stack.image)

    def _regions(self, index, stack):
        folds = self.stages[self.names[index]].folds
        return regions(stack, folds) if folds > 1 else [(stack.image.roi, None)]

    def _filled(self, index, state):
        """The network of a stage with weights."""
        network = self.network(index)
        checkpoint.fill(network, state, f"stage {self.names[index]}")
        return network

    def predict(self, index, network, stack, region, progress=None):
        """Boundary probabilities of a region of a stack, by a network in the place of a stage.

        Parameters
        ----------
        index : int
            Of the stage; the maps of all stages before it are there.
        network : torch.nn.Module
        stack : LabelledStack
        region : Roi
            In the voxels of `stack.image`.
        progress : callable, optional
            As of `inference.infer_volume`.

        Returns
        -------
        ndarray, float32, of the region's shape
        """
        chain = [(name, self.network(i)) for i, name in enumerate(self.names[:index])] + [(self.names[index], network)]
        return infer_volume(chain, stack.image, MemoryStore(self.maps[stack.name]), region, self.memory_budget,
                            self.data.recursion_scaling, progress).read()

    def _validation(self, index, listener):
        """``validate(network)`` on the sections held out for selection, or None when there are none."""
        if not self._held_out():
            return None
        select_by = self.stages[self.names[index]].trainer.select_by
        return lambda network: selection_scores(self._held_out_maps(index, network, listener), select_by)

    def _held_out(self):
        return [stack for stack in self.stacks if stack.selection is not None]

    def _held_out_maps(self, index, network, listener):
        """[(probability, target)] of the sections held out for selection, stack by stack."""
        held = [(stack, labelled_region(stack.selection)) for stack in self._held_out()]
        return [(self.predict(index, network, stack, region, listener.validating), target_in(stack.selection, region))
                for stack, region in held]

    def _threshold(self, listener):
        """The threshold that the chosen weights do best with on the held-out sections; None where there are none."""
        index = len(self.names) - 1
        maps = self._held_out_maps(index, self._filled(index, self.finished[self.names[index]]), listener)
        return chosen_threshold(maps) if maps else None
