"""What a function means, in float64 and in numpy alone: the oracle of passes and of the executor, for small volumes.

Whatever the elements, nothing is rounded or cut off.
"""
import itertools

import numpy as np

from znn.graph.ir import Constant
from znn.graph.types import WEIGHTS, unify


def interpret(function, *inputs):
    """The result of a function.

    Parameters
    ----------
    function : Function
    *inputs : ndarray, (channels, z, y, x)
        One for each parameter.

    Returns
    -------
    ndarray of float64, (channels, z, y, x)

    Raises
    ------
    GraphError
        If an input has not the shape that its parameter declares.
    """
    values = {}
    for param, array in zip(function.params, inputs, strict=True):
        unify(param.type, array.shape, str(param))
        values[param.name] = array.astype(np.float64)
    for each in function.lets:
        args = [_value(function, values, a) for a in each.call.args]
        values[each.var.name] = MEANING[each.call.op](each.call, *args)
    return values[function.result.name]


def _value(function, values, atom):
    if atom is None:
        return None
    return function.weights[atom.name].astype(np.float64) if isinstance(atom, Constant) else values[atom.name]


def _windows(x, taps, dilation):
    """For each tap its index and the part of x that it meets, of the extent that all taps share."""
    extents = [n - d * (k - 1) for n, k, d in zip(x.shape[1:], taps, dilation)]
    for tap in itertools.product(*map(range, taps)):
        yield tap, x[:, *(slice(k * d, k * d + n) for k, d, n in zip(tap, dilation, extents))]


def _conv3d(call, x, w, bias, onto, factors, mix, mix_bias):
    y = sum(np.tensordot(w[:, :, *tap], part, 1) for tap, part in _windows(x, w.shape[2:], call["dilation"]))
    y = y if factors is None else y * _each(factors)
    y = y if onto is None else y + onto
    y = y if bias is None else y + _each(bias)
    if call["activation"] is not None:
        y = np.maximum(y, 0) if call["activation"] == "relu" else _tanh(y, *call["activation"])
    y = y + call["zero"]
    if mix is None:
        return y
    y = np.tensordot(mix[..., 0, 0, 0], y, 1)
    return y if mix_bias is None else y + _each(mix_bias)


def _each(numbers):
    """Numbers of channels, to meet their volumes."""
    return numbers[:, None, None, None]


def _tanh(x, a, b):
    return a * np.tanh(b * x)


def _cast(call, x, by):
    if by is None:
        return x
    return x * _each(by) + call["zero"] if call["to"] in WEIGHTS else (x - call["zero"]) / _each(by)


def _crop(call, x):
    return x[:, *(slice(low, n - high) for n, low, high in zip(x.shape[1:], call["low"], call["high"]))]


MEANING = {
    "conv3d": _conv3d,
    "max_filter": lambda call, x: np.max([part for _, part in _windows(x, call["window"], call["dilation"])], axis=0),
    "bias": lambda call, x, bias: x + _each(bias),
    "scale": lambda call, x, by: x * _each(by),
    "relu": lambda call, x: np.maximum(x, 0),
    "tanh": lambda call, x: _tanh(x, call["a"], call["b"]),
    "add": lambda call, x, y: x + y,
    "concat": lambda call, *xs: np.concatenate(xs),
    "channels": lambda call, x: x[call["first"]:call["end"]],
    "crop": _crop,
    "cast": _cast,
}
