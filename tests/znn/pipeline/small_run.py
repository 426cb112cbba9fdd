"""Training in miniature: a phantom of a few sections and networks of a few weights."""
import torch

from data import Standardisation
from data.phantom import write_phantom
from znn.nn import Conv3d, Dropout, MaxFilter3d, ReLU, field_of_view
from znn.pipeline.recursion import Recursion
from znn.pipeline.stacks import StackSettings, TrainingData, open_stacks
from znn.pipeline.stages import Model, StageSettings
from znn.pipeline.trainer import Trainer

SHAPE, RESOLUTION = (7, 41, 53), (40.0, 4.0, 3.5)


class Small(torch.nn.Module):
    """Dense, with dropout; two channels when recursive, and then three-dimensional."""

    def __init__(self, recursive=False):
        super().__init__()
        self.in_channels = 2 if recursive else 1
        self.first = Conv3d(1, 4, (1, 3, 3), activation=ReLU())
        self.first_r = Conv3d(1, 4, (1, 3, 3), activation=ReLU()) if recursive else None
        self.pool = MaxFilter3d((1, 2, 2))
        self.second = Conv3d(4, 6, (2 if recursive else 1, 3, 3), (1, 2, 2), activation=ReLU())
        self.drop = Dropout(0.5)
        self.last = Conv3d(6, 2, 1)
        self.field_of_view = field_of_view(self, self.in_channels)

    def forward(self, x):
        y = self.first(x[:, :1])
        if self.first_r is not None:
            y = y + self.first_r(x[:, 1:])
        return self.last(self.drop(self.second(self.pool(y))))


def build(name, options):
    """`models.build` for networks of these tests."""
    return Small(**options)


def transfer(state, network):
    """`models.transfer` for networks of these tests."""
    network.first.weight.data.copy_(state["first.weight"])
    return ["first"]


def trainer(steps=4, **changes):
    """Every event within a few steps, but pictures at the end only."""
    return Trainer(**{"steps": steps, "patch": [1, 6, 9], "log_every": 2, "preview_every": 1000, "select_every": 2,
                      "save_every": 3} | changes)


def data(root, mirror=True, **changes):
    """A phantom in a file below `root`, as it is configured."""
    path = root / "stack.h5"
    if not path.exists():
        write_phantom(path, SHAPE, seed=3, resolution_zyx=RESOLUTION)
    stack = StackSettings("stack.h5", labels="volumes/labels/neuron_ids", kind="ids", train_z=[0, 5], select_z=[5, 7])
    return TrainingData(str(root), {"phantom": stack}, Standardisation(), mirror=mirror, **changes)


def recursion(folder, root, first=None, second=None, seed=5, init=None, **changes):
    """A run of two stages."""
    folder.mkdir(parents=True, exist_ok=True)
    stages = {"plain": StageSettings(Model("Small"), first or trainer()),
              "again": StageSettings(Model("Small", {"recursive": True}), second or trainer())}
    settings = data(root, **changes)
    return Recursion(folder, stages, settings, open_stacks(settings), build, transfer, seed, init=init)
