"""ZNN: dense 3D convolution on many-core CPUs, and the boundary-detection pipeline around it."""
from znn import nn
from znn.nn import use_engine

__version__ = "0.1.0"
__all__ = ["nn", "use_engine"]
