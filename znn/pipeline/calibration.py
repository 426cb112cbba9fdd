"""Networks in integers of eight bits: what they must have room for, and what they change, on blocks of the volume.

The blocks lie at places that depend on the region alone. On each, all stages run in float32, and their inner values are
noted; then they run in integers, and the two last maps are compared. What was noted holds for all that is computed
afterwards, however it is cut into blocks.
"""
import functools
from dataclasses import asdict, dataclass, replace

import numpy as np
from tqdm import tqdm

from data.roi import Roi
from znn.graph.calibration import Observer
from znn.graph.compiled import compile
from znn.pipeline.errors import PrecisionLost
from znn.pipeline.inference import infer_volume
from znn.pipeline.memory import GB
from znn.pipeline.planning import named

BLOCKS = 8
EXTENT = (4, 96, 96)  # of a block of the last map


@dataclass(frozen=True)
class Calibration:
    """What was noted and found.

    Attributes
    ----------
    ranges : dict of str to dict
        By the name of a stage, see `znn.graph.compiled.compile`.
    blocks : int
        How many.
    mean_difference, largest_difference : float
        Of the last map in integers from that in float32.
    """

    ranges: dict
    blocks: int
    mean_difference: float = 0.0
    largest_difference: float = 0.0

    def __str__(self):
        return (f"int8: on {self.blocks} sampled blocks the map differs from float32 by {self.mean_difference:.4f} on "
                f"average, {self.largest_difference:.3f} at most")

    def recorded(self):
        """As a dict for JSON, of which ``Calibration(**recorded)`` is an equal one."""
        return asdict(self)

    def check(self, tolerance):
        """Raise `PrecisionLost` if the mean difference is more than the tolerance."""
        if not self.mean_difference <= tolerance:
            raise PrecisionLost(f"{self}; expected at most {tolerance:g} on average: say precision=bf16, or allow more "
                                "with int8_tolerance=")

    def compiled(self, name, network, between=None):
        """The network of a stage in integers; `between` is called before each of its kernels."""
        return functools.partial(compile(network, "int8", ranges=self.ranges[name]), between=between)


def calibrate(networks, image, region=None, memory_budget=GB, recursion_scaling="fixed", between=None):
    """Run all stages on sampled blocks, in float32 and in integers.

    Parameters
    ----------
    networks, image, region, memory_budget, recursion_scaling
        As for `inference.infer_volume`. With "stack", a map is scaled by what was computed around its block.
    between : callable, optional
        Called before each kernel; what it raises ends the work.

    Returns
    -------
    Calibration

    Raises
    ------
    As `inference.infer_volume`.
    """
    networks = named(networks)
    chosen = sampled(image.roi if region is None else region)
    observers = [Observer(compile(network)) for _, network in networks]
    options = {"memory_budget": memory_budget, "recursion_scaling": recursion_scaling}
    with tqdm(total=2 * len(chosen), desc="calibrating int8", unit="block", dynamic_ncols=True, leave=False) as bar:

        def maps(prepared):
            prepare = {network: f for (_, network), f in zip(networks, prepared)}.get
            for block in chosen:
                yield infer_volume(networks, image, region=block, prepare=prepare, **options).read()
                bar.update()

        exact = list(maps([functools.partial(o, between=between) for o in observers]))
        noted = Calibration({name: o.ranges for (name, _), o in zip(networks, observers)}, len(chosen))
        found = maps([noted.compiled(name, network, between) for name, network in networks])
        apart = np.concatenate([np.abs(a - b).ravel() for a, b in zip(exact, found)])
    return replace(noted, mean_difference=float(apart.mean(dtype=np.float64)), largest_difference=float(apart.max()))


def sampled(region):
    """Blocks of a region, at most `BLOCKS`, which do not depend on how it is cut for computing.

    They are spread by the additive recurrence of Roberts, which covers a volume evenly; list of `data.roi.Roi`.
    """
    extent = [min(n, e) for n, e in zip(region.shape, EXTENT)]
    free = [n - e for n, e in zip(region.shape, extent)]
    golden = 1.2207440846057596  # the root of g^4 = g + 1
    steps = [(0.5 + k / golden**np.arange(1, 4)) % 1 for k in range(1, BLOCKS + 1)]
    places = [tuple(b + round(float(s) * f) for b, s, f in zip(region.begin, step, free)) for step in steps]
    return [Roi(place, tuple(extent)) for place in dict.fromkeys(places)]
