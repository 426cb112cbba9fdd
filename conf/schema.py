"""Every key of every command, with its type, default and meaning; registered with Hydra as `<command>_schema`.

A value of another type or a key that is not here is an error before anything runs (see `conf.entry`).
"""
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from data import Augmentation, Standardisation
from znn.pipeline.pairing import EvaluationSettings
from znn.pipeline.prediction import InferenceSettings


@dataclass
class Engine:
    """What computes the layers.

    name : "znn" (generated kernels) or "torch" (the reference)
    threads : int; 0 takes every core this process may use
    """

    name: str = "znn"
    threads: int = 0


@dataclass
class Model:
    """A network by name, as `models.build(name, options)` makes it."""

    name: str = MISSING
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stack:
    """One labelled stack; relative paths start at the `root` of `Data`.

    path : HDF5 file with the grey values, dataset `raw`
    label_path : HDF5 file with the labels, the same file unless given
    labels, kind : dataset of the labels; "membrane" (0 is membrane) or "ids" (one id a neuron)
    mask : dataset of the label file, nonzero where labels are not to be used
    train_z, select_z : [first, end) sections of the raw volume to train on, and to choose the best weights by;
        absent: all sections train, none selects
    """

    path: str = MISSING
    raw: str = "volumes/raw"
    label_path: str | None = None
    labels: str = "volumes/labels/membrane"
    kind: str = "membrane"
    mask: str | None = None
    train_z: list[int] | None = None
    select_z: list[int] | None = None


@dataclass
class Data:
    """What is trained on, and how patches are made of it.

    root : folder that relative paths start at
    mirror : also draw patches whose context lies outside of the volume
    recursion_scaling : how the map of the stage before is scaled to [-1, 1]: "fixed" (2 p - 1) or "stack" (its extremes)
    workers : processes that prepare patches; 0 prepares them in the main one
    """

    root: str = "."
    stacks: dict[str, Stack] = field(default_factory=dict)
    standardisation: Standardisation = field(default_factory=Standardisation)
    augmentation: Augmentation = field(default_factory=Augmentation)
    mirror: bool = False
    recursion_scaling: str = "fixed"
    workers: int = 1


@dataclass
class Optimiser:
    """name: "sgd" (uses `momentum`) or "adam" (uses `betas`)."""

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.0


@dataclass
class Schedule:
    """How the learning rate moves.

    name : "anneal" (times `factor` every `every_steps`), "cosine" (to `final_fraction` at the end of the stage, by
        steps or by minutes, whichever is further) or "constant"
    warmup_steps : linear rise at the beginning
    """

    name: str = "anneal"
    factor: float = 0.997
    every_steps: int = 100
    final_fraction: float = 0.01
    warmup_steps: int = 0


@dataclass
class Balance:
    """Weights of the two classes in the gradient.

    scaling : "sum_one" (w+ + w- = 1), "mean_one" (the mean weight of a voxel is 1) or "none"
    over : "global" (counts of all training labels) or "patch"
    """

    scaling: str = "mean_one"
    over: str = "global"


@dataclass
class Trainer:
    """How a stage is trained.

    steps, max_minutes : the stage ends with whichever comes first; no minutes, no limit of time
    patch : output voxels (z, y, x) of one patch
    patches_per_step : their gradients are averaged
    clip_norm : largest norm of the gradient, none unless given
    log_every, preview_every, select_every, save_every : steps between points of the learning curve, preview pictures,
        validations and checkpoints
    """

    steps: int = 60_000
    max_minutes: float | None = None
    patch: list[int] = field(default_factory=lambda: [1, 100, 100])
    patches_per_step: int = 1
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    balance: Balance = field(default_factory=Balance)
    clip_norm: float | None = None
    log_every: int = 20
    preview_every: int = 500
    select_every: int = 500
    save_every: int = 500


@dataclass
class Stage:
    """One network and its training; from the second on it also reads the map of the stage before."""

    model: Model = field(default_factory=Model)
    trainer: Trainer = field(default_factory=Trainer)


@dataclass
class Train:
    """Settings of train.py.

    experiment : name of the file in conf/experiment
    name, runs : the run is written to <runs>/<name>
    resume : folder of a run to go on with
    seed : of weights, patches and dropout
    stages : in order
    memory_budget_gb : of computing whole maps
    tensorboard : also write events (extra `log`)
    """

    experiment: str = MISSING
    name: str = "${experiment}"
    runs: str = "runs"
    resume: str | None = None
    seed: int = 0
    data: Data = field(default_factory=Data)
    stages: dict[str, Stage] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)
    memory_budget_gb: float = 2.0
    tensorboard: bool = False


@dataclass
class Infer(InferenceSettings):
    """Settings of infer.py: those of `InferenceSettings`, and what computes."""

    engine: Engine = field(default_factory=Engine)


@dataclass
class Evaluate(EvaluationSettings):
    """Settings of evaluate.py: those of `EvaluationSettings`, and what is written.

    output : folder of report.json, report.html and the pictures
    overlay_sections : sections in the picture of the boundaries, 0 for no picture
    overwrite : replace an existing report
    """

    output: str = MISSING
    overlay_sections: int = 3
    overwrite: bool = False


SCHEMAS = {"train": Train, "infer": Infer, "evaluate": Evaluate}


def register():
    """Make the schemas known to Hydra, so that a YAML file can name one in its defaults."""
    for command, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{command}_schema", node=schema)
