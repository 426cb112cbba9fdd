"""How fast networks compute here, measured on a small block, so that the time of a volume is known before the first."""
import time

import numpy as np

from znn.pipeline.demand import demand
from znn.pipeline.inference import evaluating, predict
from znn.pipeline.planning import field_of_view, named

PROBE = (1, 96, 96)   # voxels of output; a larger block is somewhat faster for each of its products


def rates(networks):
    """Seconds for a product of each network's convolutions, by name; kernels are compiled by the way.

    Parameters
    ----------
    networks : sequence of (str, network), or of networks
        See `planning.plan`.
    """
    return {name: _rate(name, network, min(i, 1) + 1) for i, (name, network) in enumerate(named(networks))}


def _rate(name, network, channels):
    fov = field_of_view(name, network, channels)
    x = np.zeros((channels, *(f + n - 1 for f, n in zip(fov, PROBE))), np.float32)
    with evaluating(network):
        predict(network, x)
        start = time.perf_counter()
        predict(network, x)
        seconds = time.perf_counter() - start
    return seconds / demand(network, channels, fov).work(PROBE, (1, 1, 1), fov)
