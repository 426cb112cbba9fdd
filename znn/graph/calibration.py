"""What integers must have room for: the largest magnitudes of a network's inner values on samples of its input."""
import numpy as np

from znn.graph.errors import GraphError
from znn.graph.passes.quantise import watched

DIGITS = 6  # of a magnitude, so that it is the same wherever it is written down


class Observer:
    """A compiled network that notes what `quantise` needs to know, on every input that it is called with.

    Parameters
    ----------
    compiled : znn.graph.compiled.Compiled
        In "fp32".
    """

    def __init__(self, compiled):
        self._compiled, self._names, self._largest = compiled, watched(compiled.function), {}

    def __call__(self, x, between=None):
        """What the network computes of `x`; see `Compiled`."""
        return self._compiled(x, between, self._watch)

    def _watch(self, name, values):
        if name in self._names:
            largest = np.maximum(values.max((1, 2, 3)), -values.min((1, 2, 3)))
            self._largest[name] = np.maximum(self._largest.get(name, 0), largest)

    @property
    def ranges(self):
        """For each variable the largest magnitude of each channel so far; dict of str to list of float, fit for JSON.

        Raises
        ------
        GraphError
            If there were no inputs, or what was computed of them is not finite.
        """
        for name in sorted(self._names):
            if name not in self._largest:
                raise GraphError("samples: expected one or more inputs to calibrate on, found none: give inputs like "
                                 "those to come")
            if not np.isfinite(self._largest[name]).all():
                raise GraphError(f"{name}: expected finite values on the samples, found NaN or infinity: give samples "
                                 "and weights that are usable")
        return {name: [float(f"{v:.{DIGITS}g}") for v in self._largest[name].tolist()] for name in sorted(self._names)}
