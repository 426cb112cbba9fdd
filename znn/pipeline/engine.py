"""Choosing what computes the layers, and on how many cores."""
import numba
import torch

from znn import nn
from znn.pipeline.errors import PipelineError


def use(name, threads=0):
    """Compute all layers from now on with the engine `name` on `threads` cores.

    Parameters
    ----------
    name : "znn" or "torch"
    threads : int
        0 takes every core this process may use.

    Raises
    ------
    PipelineError
        If the engine is unknown, or there are not that many cores.
    """
    cores = numba.config.NUMBA_NUM_THREADS
    if name not in nn.ENGINES:
        raise PipelineError(f"engine.name: expected one of {', '.join(nn.ENGINES)}, found {name!r}")
    if not 0 <= threads <= cores:
        raise PipelineError(f"engine.threads: expected 0 (all) to {cores}, the cores this process may use, "
                            f"found {threads}")
    nn.use_engine(name)
    numba.set_num_threads(threads or cores)
    torch.set_num_threads(threads or cores)
