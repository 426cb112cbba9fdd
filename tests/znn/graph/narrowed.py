"""What the tests of narrow element types share: the meaning with values as they are stored, and a user's network."""
import numpy as np
import pytest
import torch
from torch import nn as tnn

from tests.znn.graph.functions import SIZES
from znn import nn
from znn.graph import interpreter
from znn.graph.executor import Executable


class Users(tnn.Module):
    """A user's network with odd numbers of maps, and sums, tanh and normalisation between convolutions."""

    in_channels = 2

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 5, (1, 3, 3)), nn.Conv3d(5, 7, (2, 2, 2), activation=nn.ReLU())
        self.third, self.norm = nn.Conv3d(7, 7, (1, 1, 1)), tnn.BatchNorm3d(7)
        self.last, self.pool = nn.Conv3d(7, 3, (1, 1, 1)), nn.MaxFilter3d((1, 2, 2))

    def forward(self, x):
        h = self.pool(torch.tanh(self.second(self.first(x))))
        return self.last(torch.relu(self.norm(h + self.third(h))) * 0.5)


def check_run(function, x, dtype, stored):
    """A function is run as the interpreter does where values of a type are as `stored` makes them.

    But for numbers so near the middle of two that float32 rounds them to the other one, which are few.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZNN_WINOGRAD", "0")
        expected = _interpret_stored(function, x, dtype, stored)
        out = np.full(expected.shape, np.nan, np.float32)
        Executable(function.at(SIZES)).run(x, out)
    apart = np.abs(out - expected)
    assert np.median(apart) <= 1e-4 * np.abs(expected).max() and apart.max() <= 0.1 * np.abs(expected).max()


def _interpret_stored(function, x, dtype, stored):
    def value(function, values, atom, real=interpreter._value):
        found = real(function, values, atom)
        return stored(found) if atom is not None and atom.type.dtype == dtype else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_value", value)
        return interpreter.interpret(function, x)
