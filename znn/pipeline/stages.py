"""What one stage of a recursive training is: settings, as the configs give them."""
from dataclasses import dataclass, field
from typing import Any

from znn.pipeline.errors import positive
from znn.pipeline.trainer import Trainer


@dataclass
class Model:
    """A network by name and options, as ``build(name, options)`` makes it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class StageSettings:
    """One stage.

    model, trainer : the network, and how it is trained
    start_from_previous : begin with the layers of the stage before that agree in name and shape
    folds : from 2 on, as many networks more are trained, each without a part of the training sections, and make the map
        of that part for the next stage, see `crossfit`
    """

    model: Model
    trainer: Trainer = field(default_factory=Trainer)
    start_from_previous: bool = True
    folds: int = 1

    def __post_init__(self):
        positive("stage folds", self.folds)
