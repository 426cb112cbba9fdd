"""Random walks from the default schedules of a layer of VD2D3D: every schedule computes the same.

A few are run always, a thousand with ``ZNN_EXHAUSTIVE=1``.
"""
import os
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.znn.codegen.kernels import F64, generated
from tests.znn.loops.nests import default_schedule, neighbour
from znn.codegen import target
from znn.loops import Schedule, conv_backward_data, conv_backward_weights, conv_forward

WALKS = 334 if os.environ.get("ZNN_EXHAUSTIVE") == "1" else 9  # of each pass
STEPS = 12
LAYER, EXTENT, DILATION = (1, 36, 36, (1, 3, 3)), (2, 3, 21), (1, 2, 2)
SIZE = (2, 7, 25)


def layer():
    """Each pass: the contraction, its operands and what torch says."""
    torch.manual_seed(0)
    x, w, g = (torch.randn(shape, dtype=torch.float64, requires_grad=True)
               for shape in ((1, 36, *SIZE), (36, 36, 1, 3, 3), (1, 36, *EXTENT)))
    y = F.conv3d(x, w, dilation=DILATION)
    dx, dw = torch.autograd.grad(y, (x, w), g)
    padded = F.pad(g, (4, 4))
    return {c.name: (c, *(np.ascontiguousarray(t.detach().numpy()).ravel() for t in tensors)) for c, *tensors in (
        (conv_forward(*LAYER, EXTENT, DILATION), x, w, y),
        (conv_backward_data(*LAYER, SIZE, DILATION), padded, w, dx),
        (conv_backward_weights(*LAYER, EXTENT, DILATION), x, g, dw))}


PASSES = layer()


def walk(c, where, rng):
    """A schedule some moves away from the default one."""
    schedule = default_schedule(c, where.lanes(F64), where.registers)
    for _ in range(rng.randint(1, STEPS)):
        schedule = neighbour(c, schedule, rng)
    return schedule


@pytest.mark.parametrize("number", range(WALKS))
@pytest.mark.parametrize("name", PASSES)
def test_every_schedule_computes_the_same(name, number):
    c, a, b, expected = PASSES[name]
    rng = random.Random(f"{name} {number}")
    where = target.TARGETS[rng.choice(target.available())]
    packed = rng.choice((None, "before", "inside"))
    schedule = walk(c, where, rng)
    found = generated(c, schedule, a, b, np.full_like(expected, np.nan), where, packed)
    assert np.allclose(found, expected, rtol=0, atol=1e-9), f"{schedule} on {where.name}, packed {packed}"
    assert Schedule.parse(str(schedule)) == schedule
