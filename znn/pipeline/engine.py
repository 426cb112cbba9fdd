"""Choosing what computes the layers, and on how many cores."""
import numba
import torch

from znn import nn
from znn.pipeline.errors import WrongSetting, one_of


def use(name, threads=0):
    """Compute all layers from now on with the engine `name` on `threads` cores.

    Parameters
    ----------
    name : "znn" or "torch"
    threads : int
        0 takes every core this process may use.

    Raises
    ------
    WrongSetting
        If the engine is unknown, or there are not that many cores.
    """
    cores = numba.config.NUMBA_NUM_THREADS
    one_of("engine.name", name, nn.ENGINES)
    if not 0 <= threads <= cores:
        raise WrongSetting(f"engine.threads: expected 0 (all) to {cores}, the cores this process may use, "
                           f"found {threads}")
    nn.use_engine(name)
    numba.set_num_threads(threads or cores)
    torch.set_num_threads(threads or cores)
