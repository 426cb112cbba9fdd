"""What computes the layers: generated kernels, or PyTorch as the reference."""
import torch

from znn.runtime import arena

_engine = "znn"
ENGINES = ("znn", "torch")


def use_engine(name):
    """Choose what computes the layers from now on: ``"znn"`` (generated kernels) or ``"torch"`` (the reference).

    Raises
    ------
    ValueError
        If `name` is neither.
    """
    global _engine
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown: choose one of {', '.join(ENGINES)}")
    _engine = name


def current_engine():
    """The name of what computes the layers now, "znn" or "torch"."""
    return _engine


def memory_at_most(limit):
    """A context in which the layers keep no idle memory that makes more than `limit` bytes of all they hold."""
    return arena.at_most(limit)


def ours(x):
    """Whether the generated kernels compute this tensor: they know dense CPU memory and two floating types."""
    return _engine == "znn" and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
