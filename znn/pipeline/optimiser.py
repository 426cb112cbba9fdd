"""The rule that moves the weights, how its learning rate moves, and its state as named tensors."""
import math
from dataclasses import dataclass, field

import torch

from znn.pipeline.errors import CheckpointError, WrongSetting, not_negative, one_of, positive


@dataclass
class Optimiser:
    """The rule.

    name : "sgd" (with `momentum`) or "adam" (with `betas`; decoupled weight decay, Loshchilov and Hutter 2019)
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.0

    def __post_init__(self):
        one_of("optimiser name", self.name, ("sgd", "adam"))
        positive("optimiser learning_rate", self.learning_rate)
        not_negative("optimiser weight_decay", self.weight_decay)
        if not (len(self.betas) == 2 and all(0 <= b < 1 for b in (*self.betas, self.momentum))):
            raise WrongSetting(f"optimiser: expected momentum and two betas in [0, 1), found {self.momentum} "
                               f"and {self.betas}")

    def over(self, parameters):
        """A torch optimiser of these parameters."""
        parameters = list(parameters)
        if self.name == "sgd":
            return torch.optim.SGD(parameters, self.learning_rate, self.momentum, weight_decay=self.weight_decay)
        return torch.optim.AdamW(parameters, self.learning_rate, tuple(self.betas), weight_decay=self.weight_decay)


@dataclass
class Schedule:
    """The learning rate over a stage.

    name : "anneal", "cosine" or "constant"
        "anneal": times `factor` after every `every_steps` (the published recipe); "cosine": half a cosine from 1 to
        `final_fraction` over the stage.
    warmup_steps : int
        It rises linearly over so many first steps.
    """

    name: str = "anneal"
    factor: float = 0.997
    every_steps: int = 100
    final_fraction: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self):
        one_of("schedule name", self.name, ("anneal", "cosine", "constant"))
        positive("schedule factor", self.factor)
        positive("schedule every_steps", self.every_steps)
        not_negative("schedule warmup_steps", self.warmup_steps)
        not_negative("schedule final_fraction", self.final_fraction)

    def scale(self, step, progress):
        """What the learning rate is multiplied with.

        Parameters
        ----------
        step : int
            Updates made before this one.
        progress : float
            Share of the stage that has passed, by steps or by time, whichever is further; 0 to 1.
        """
        rise = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.name == "anneal":
            return rise * self.factor ** (step // self.every_steps)
        if self.name == "cosine":
            fall = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
            return rise * (self.final_fraction + (1 - self.final_fraction) * fall)
        return rise


def optimiser_tensors(optimiser, network):
    """The state of a torch optimiser as ``{"<slot>/<parameter>": tensor}``."""
    return {f"{slot}/{name}": value for name, parameter in network.named_parameters()
            for slot, value in optimiser.state.get(parameter, {}).items() if value is not None}


def restore_optimiser(optimiser, network, tensors):
    """Put back what `optimiser_tensors` gave.

    Raises
    ------
    CheckpointError
        If a tensor belongs to no parameter.
    """
    parameters = dict(network.named_parameters())
    for key, tensor in tensors.items():
        slot, _, name = key.partition("/")
        if name not in parameters:
            raise CheckpointError(f"state of the optimiser: {key} belongs to no parameter of the network; "
                                  "go on with the network that the run was started with")
        optimiser.state[parameters[name]][slot] = tensor.clone()
