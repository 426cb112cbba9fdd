"""What is tuned to learn from and to test with: a fixed set of 3D convolutions, and the convolutions of a network.

The set is drawn by a generator with a fixed seed from the kernels, dilations, channels and extents below; what is held
out for testing has none of the kernels, numbers of channels and extents of rows that training has.
"""
import math
import random
from dataclasses import dataclass, replace

import numba
import numpy as np

from znn.runtime.layer import Layer
from znn.tuner.problem import Problem

DILATIONS = ((1, 1, 1), (1, 2, 2), (1, 4, 4))
FLOPS = 2e7, 1.5e9        # of a pass: shorter ones are over before threads have begun, longer ones teach nothing more
BYTES = 48 << 20          # of all its tensors together
EACH = 4                  # convolutions of a family
POINT_CALLS = 6           # kernels of one point that run after each other, with rows of their own


@dataclass(frozen=True)
class Split:
    """Values that the convolutions of a set are drawn from; columns are of the output."""

    kernels: tuple
    channels: tuple
    planes: tuple
    columns: tuple


SPLITS = {
    "train": Split(kernels=((1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 5, 5), (2, 2, 2), (3, 3, 3), (3, 1, 1), (2, 4, 4)),
                   channels=(1, 3, 8, 16, 20, 32, 40, 64, 96, 128, 160), planes=(1, 2, 4),
                   columns=(16, 23, 31, 48, 64, 93, 128, 170)),
    "test": Split(kernels=((1, 4, 4), (2, 3, 3), (4, 4, 4), (5, 5, 5)), channels=(2, 24, 36, 48, 60, 100, 200),
                  planes=(1, 3), columns=(19, 27, 40, 57, 79, 100, 145)),
}


@dataclass(frozen=True)
class Workload:
    """A problem with a name; `family` is its kernel and dilation, `which` the pass, which runs it so many `times`."""

    name: str
    family: str
    which: str
    problem: Problem
    times: int = 1

    def of_passes(self, seconds):
        """Seconds that the passes spend in it when a run of the problem takes `seconds`.

        What runs on one thread runs on all of them at the same time, on as many operands.
        """
        return self.times * seconds / (self.problem.calls * (numba.get_num_threads() if self.problem.threads else 1))


def published(split, where, dtype=np.float32, each=EACH):
    """The set to train on or to test with: every pass of so many convolutions of each family, at points where that is
    sooner done, and directly.

    Parameters
    ----------
    split : {"train", "test"}
    where : Target
    dtype : numpy.dtype
    each : int
        The first so many of each family; the set with more begins with the set with fewer.

    Returns
    -------
    list of Workload
        Each problem once.
    """
    return _unique([w for layer in convolutions(split, each) for points in (True, False)
                    for w in workloads(layer, where, dtype, points)])


def convolutions(split, each=EACH):
    """The convolutions of `published`; list of Layer."""
    values, found = SPLITS[split], []
    for kernel in values.kernels:
        for dilation in DILATIONS if max(kernel) > 1 else DILATIONS[:1]:
            rng, family = random.Random(f"{split} {kernel} {dilation}"), {}
            while len(family) < each:
                layer = _drawn(values, kernel, dilation, rng)
                if layer:
                    family[layer] = None
            found.extend(family)
    return found


def of_network(layers, where, dtype=np.float32):
    """Every kernel that convolutions ask for in the passes that are made of them; list of Workload, each problem once.

    Parameters
    ----------
    layers : iterable of Layer
        From `znn.nn.layers`, for a network.
    where : Target
    dtype : numpy.dtype
    """
    return _unique([w for layer in layers for w in workloads(layer, where, dtype)])


def workloads(layer, where, dtype=np.float32, points=True):
    """What a convolution asks for in its passes, without `points` in the direct form; list of Workload."""
    kernel = "x".join(map(str, layer.w_shape[2:]))
    family = f"{kernel} dilated {'x'.join(map(str, layer.dilation))}"
    name = layer.name or (f"{layer.w_shape[1]}-{layer.w_shape[0]} {family} to {layer.x_shape[0]}x"
                          f"{'x'.join(map(str, layer.extent))}")
    found = []
    for which in layer.passes:
        asked = layer.requests(which, np.dtype(dtype), where, points)
        parts = [f" {i} of {len(asked)}" for i in range(1, len(asked) + 1)] if len(asked) > 1 else [""]
        found += [Workload(f"{name} {which}{part}", family, which, problem(request), times)
                  for part, (request, times) in zip(parts, asked.items())]
    return found


def problem(request):
    """The problem that a request poses.

    Products at points run within a task of something larger, on one thread; those for the weights one point at a time.
    """
    at_points = request.contraction.name.startswith("points")
    calls = POINT_CALLS if request.contraction.name == "points_weights" else 1
    return Problem(request.contraction, request.default(), request.where, request.dtype, request.epilogue,
                   request.packed, request.task, calls, 1 if at_points else None)


def _drawn(values, kernel, dilation, rng):
    """A convolution, or None where it takes too little or too much time or memory."""
    ci, co = rng.choice(values.channels), rng.choice(values.channels)
    planes, rows, columns = rng.choice(values.planes), rng.choice(values.columns), rng.choice(values.columns)
    activation = rng.choice((None, "relu"))
    extent = planes, rows, columns
    held = tuple(e + d * (k - 1) for e, d, k in zip(extent, dilation, kernel))
    flops = 2 * ci * co * math.prod(kernel) * math.prod(extent)
    memory = 4 * (ci * math.prod(held) + co * math.prod(extent) + ci * co * math.prod(kernel))
    if not FLOPS[0] <= flops <= FLOPS[1] or memory > BYTES:
        return None
    return Layer((1, ci, *held), (co, ci, *kernel), dilation, activation=activation)


def _unique(found):
    """Each problem once, under the name that it has first, for all the times that it is run."""
    first = {}
    for w in found:
        known = first.get(w.problem)
        first[w.problem] = replace(known, times=known.times + w.times) if known else w
    return list(first.values())
