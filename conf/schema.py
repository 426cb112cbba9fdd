"""Every key of every command, with its type, default and meaning; registered with Hydra as `<command>_schema`.

A value of another type or a key that is not here is an error before anything runs (see `conf.entry`).
"""
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from znn.pipeline.errors import not_negative
from znn.pipeline.pairing import EvaluationSettings
from znn.pipeline.prediction import InferenceSettings
from znn.pipeline.stacks import TrainingData
from znn.pipeline.stages import Model, StageSettings


@dataclass
class Engine:
    """What computes the layers.

    name : "znn" (generated kernels) or "torch" (the reference)
    threads : int; 0 takes every core this process may use
    """

    name: str = "znn"
    threads: int = 0


@dataclass
class Train:
    """Settings of train.py.

    experiment : name of a file in conf/experiment
    name, runs : the run is written to <runs>/<name>; named after the experiment unless given
    resume : folder of a run to go on with
    init : checkpoint, or network of the zoo, whose weights the stages of the same names begin with
    seed : of weights, patches and dropout
    data, stages : what is trained on, and the networks in order, see `TrainingData` and `StageSettings`
    memory_budget_gb : for a block when maps are computed
    tensorboard : also write events (extra `log`)
    """

    experiment: str = MISSING
    name: str | None = None
    runs: str = "runs"
    resume: str | None = None
    init: str | None = None
    seed: int = 0
    data: TrainingData = field(default_factory=TrainingData)
    stages: dict[str, StageSettings] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)
    memory_budget_gb: float = 1.0
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
    worst : merges and splits in the picture of the costliest, 0 for no picture
    overwrite : replace an existing report
    """

    output: str = MISSING
    overlay_sections: int = 3
    worst: int = 4
    overwrite: bool = False

    def __post_init__(self):
        not_negative("overlay_sections", self.overlay_sections)
        not_negative("worst", self.worst)


@dataclass
class Tune:
    """Settings of tune.py.

    model : the network; one that reads an earlier boundary map is tuned together with VD2D, which makes that
    output : voxels (z, y, x) of the output that the kernels are tuned for; those of the patches in training
    passes : any of forward, data (gradient for the input) and weights (gradient for the weights)
    mode : "measured" (the policy's proposals are measured), "policy" (nothing is measured) or "search"
    search : for mode=search, a name in `znn.tuner.searches.SEARCHES`
    seconds : for each kernel
    total_seconds : for all, where that is less
    again : tune what is tuned already, and replace it
    seed : of searches
    threads : 0 takes every core this process may use
    report, name : table and picture are written to <report>/<name>, named after network and output; null for none
    export_to, import_from : a text file; instead of tuning, what is stored is written there or taken over from there
    list : instead of tuning, show what is stored
    """

    model: Model | None = None
    output: list[int] = field(default_factory=lambda: [1, 100, 100])
    passes: list[str] = field(default_factory=lambda: ["forward", "data", "weights"])
    mode: str = "measured"
    search: str = "annealing"
    seconds: float = 2.0
    total_seconds: float | None = None
    again: bool = False
    seed: int = 0
    threads: int = 0
    report: str | None = "tuning"
    name: str | None = None
    export_to: str | None = None
    import_from: str | None = None
    list: bool = False


SCHEMAS = {"train": Train, "infer": Infer, "evaluate": Evaluate, "tune": Tune}


def register():
    """Make the schemas known to Hydra, so that a YAML file can name one in its defaults."""
    for command, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{command}_schema", node=schema)
