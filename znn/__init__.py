"""ZNN: dense 3D convolution on many-core CPUs, and the boundary-detection pipeline around it."""
import os

# Two thread pools share the cores, PyTorch's and numba's. A pool whose threads spin while they wait takes the cores
# from the other one, and from every other program; OpenMP reads this once, when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from znn import nn
from znn.graph.compiled import compile
from znn.nn import use_engine

__version__ = "0.1.0"
__all__ = ["compile", "nn", "use_engine"]
