"""How a stage is trained: its settings, and when pictures are due."""
from dataclasses import dataclass, field

from znn.pipeline.errors import WrongSetting, one_of, positive
from znn.pipeline.loss import Balance
from znn.pipeline.optimiser import Optimiser, Schedule
from znn.pipeline.selection import SELECTIONS

EARLY_PREVIEWS = 4


@dataclass
class Trainer:
    """How a stage is trained.

    steps, max_minutes : the stage ends with whichever comes first; no minutes, no limit of time
    patch : output voxels (z, y, x) of one patch
    patches_per_step : all in one batch, their voxels are averaged
    clip_norm : the gradient is scaled down to this norm where it is longer; none, never
    average_decay : the weights that are judged and kept are a moving average with this decay, see
        `weight_average.WeightAverage`; none, the weights themselves
    select_by : "pixel_error", "v_rand", "v_info" (each the best over thresholds) or "loss", on the sections held out
        for selection
    log_every, preview_every, select_every, save_every : steps between points of the learning curve, preview pictures
        (more at the beginning), validations, and checkpoints
    """

    steps: int = 60_000
    max_minutes: float | None = None
    patch: list[int] = field(default_factory=lambda: [1, 100, 100])
    patches_per_step: int = 1
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    balance: Balance = field(default_factory=Balance)
    clip_norm: float | None = None
    average_decay: float | None = None
    select_by: str = "pixel_error"
    log_every: int = 20
    preview_every: int = 800
    select_every: int = 800
    save_every: int = 200

    def __post_init__(self):
        for name in ("steps", "patches_per_step", "log_every", "preview_every", "select_every", "save_every"):
            positive(f"trainer {name}", getattr(self, name))
        for name in ("max_minutes", "clip_norm"):
            if getattr(self, name) is not None:
                positive(f"trainer {name}", getattr(self, name))
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise WrongSetting(f"trainer average_decay: expected a number between 0 and 1, found {self.average_decay}")
        one_of("trainer select_by", self.select_by, SELECTIONS)
        if len(self.patch) != 3 or min(self.patch) < 1:
            raise WrongSetting(f"trainer patch: expected three positive numbers (z, y, x), found {self.patch}")


def preview_due(step, every):
    """Whether a picture is drawn after a step: every so many, and at a half, a quarter, ... of that at the start."""
    early = {max(1, every >> k) for k in range(1, EARLY_PREVIEWS + 1)}
    return step > 0 and (step % every == 0 or step in early)
