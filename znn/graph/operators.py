"""The operators that there are, what they take, and the type of what they give.

An operator's type relation looks at the types of its operands and at its attributes; where they do not fit it says what
was expected, what was found and how to mend it. A volume is (channels, z, y, x).
"""
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real

from znn.graph.errors import IllTyped
from znn.graph.types import ITEMSIZE, TOGETHER, WEIGHTS, Extent, TensorType

AXES = "zyx"


@dataclass(frozen=True)
class Operator:
    """What a call of one name may be.

    Attributes
    ----------
    relation : callable
        ``relation(call)`` is the type of the result.
    operands, optional : tuple of str
        Names of the operands, in order.
    attributes : dict
        Defaults of the attributes, in the order in which they are printed.
    variadic : bool
        Whether it takes any number of operands, one or more, in place of named ones.
    pointwise : bool
        Whether a voxel of the result depends on the same voxel of the operands alone, so that the result may be written
        over the first of them.
    """

    relation: Callable
    operands: tuple = ()
    optional: tuple = ()
    attributes: dict = field(default_factory=dict)
    variadic: bool = False
    pointwise: bool = False


def infer(name, call):
    """The type of a call.

    Parameters
    ----------
    name : str
        Of the layer or variable, for the message.
    call : znn.graph.ir.Call

    Raises
    ------
    IllTyped
    """
    try:
        return OPERATORS[call.op].relation(call)
    except IllTyped as error:
        raise IllTyped(f"{name} ({call.op}): {error}") from None


def _conv3d(call):
    x, w = _volume(call["x"]), _shape(call["weight"], 5, "weights (out, in, kz, ky, kx)")
    if x.shape[0] != w.shape[1]:
        raise IllTyped(f"expected an input of {w.shape[1]} channels, as its weights {w} have, found {x}: give this "
                       f"layer {x.shape[0]} input channels, or the one before it {w.shape[1]} maps")
    _weighted(x, w)
    y = TensorType(_dtype(call, "result", x.sums), (w.shape[0], *_shrunk(x, w.shape[2:], _triple(call, "dilation"))))
    _channelwise(call["bias"], y)
    _standing(call, "factors", y, x)
    _zero(call, y)
    if call["onto"] is not None and _volume(call["onto"]) != y:
        raise IllTyped(f"expected to be added onto {y}, found {call['onto'].type}: crop the larger one, or cast it")
    if call["onto"] is not None and y.dtype != x.sums:
        raise IllTyped(f"expected a result of {x.sums}, as its sums are, to be added onto, found {y}: cast the sum")
    _activation(call["activation"])
    return y if call["mix"] is None else _mixed(call, y)


def _mixed(call, y):
    """Type of what a convolution of one voxel makes of the result of a convolution."""
    w = _shape(call["mix"], 5, "weights (mixes, out, 1, 1, 1)")
    if w.shape[1:] != (y.shape[0], 1, 1, 1) or call["onto"] is not None or y.dtype != w.dtype:
        raise IllTyped(f"expected weights of one voxel for {y}, that is added to nothing, found {w}: make it a call of "
                       "its own")
    y = y.like(w.shape[0], *y.shape[1:])
    _channelwise(call["mix_bias"], y)
    return y


def _cast(call):
    x = _volume(call["x"])
    y = TensorType(_dtype(call, "to"), x.shape)
    _standing(call, "by", y, x, y)
    _zero(call, x, y)
    return y


def _max_filter(call):
    x = _volume(call["x"])
    return x.like(x.shape[0], *_shrunk(x, _triple(call, "window"), _triple(call, "dilation")))


def _bias(call):
    x = _numbers(call["x"])
    _channelwise(call["bias"], x)
    return x


def _scale(call):
    x = _numbers(call["x"])
    _channelwise(call["by"], x)
    return x


def _relu(call):
    return _numbers(call["x"])


def _tanh(call):
    _activation((call["a"], call["b"]))
    return _numbers(call["x"])


def _add(call):
    x, y = _numbers(call["x"]), _numbers(call["y"])
    if x != y:
        raise IllTyped(f"expected two volumes of one type, found {x} and {y}: crop the larger one, or give both as "
                       "many maps")
    return x


def _concat(call):
    if not call.args:
        raise IllTyped("expected one volume or more, found none: name what is joined")
    types = [_volume(a) for a in call.args]
    for t in types[1:]:
        if (t.dtype, t.shape[1:]) != (types[0].dtype, types[0].shape[1:]):
            raise IllTyped(f"expected volumes of one extent, found {types[0]} and {t}: crop the larger one")
    together = TOGETHER.get(types[0].dtype, 1)
    for t in types[:-1]:
        if t.shape[0] % together:
            raise IllTyped(f"expected a multiple of {together} channels in all but the last volume, found {t}: join "
                           f"them as f32, and cast what is joined")
    return types[0].like(sum(t.shape[0] for t in types), *types[0].shape[1:])


def _channels(call):
    x, first, end = _volume(call["x"]), call["first"], call["end"]
    if not (isinstance(first, int) and isinstance(end, int) and 0 <= first < end <= x.shape[0]):
        raise IllTyped(f"expected channels first < end within 0..{x.shape[0]}, found {first}..{end}: name channels "
                       f"that {x} has")
    together = TOGETHER.get(x.dtype, 1)
    if first % together or (end % together and end < x.shape[0]):
        raise IllTyped(f"expected channels that begin and end at a multiple of {together}, found {first}..{end} of "
                       f"{x}: take them from f32, and cast what is taken")
    return x.like(end - first, *x.shape[1:])


def _crop(call):
    x, low, high = _volume(call["x"]), _triple(call, "low", 0), _triple(call, "high", 0)
    return x.like(x.shape[0], *_less(x, [a + b for a, b in zip(low, high)]))


def _volume(operand):
    """Type of an operand that is a volume."""
    if len(operand.type.shape) != 4 or not isinstance(operand.type.shape[0], int):
        raise IllTyped(f"expected a volume (channels, z, y, x), found {operand}: {operand.type}: add the missing axes, "
                       "and give a number of channels")
    return operand.type


def _numbers(operand):
    """Type of an operand that is a volume of numbers that stand for themselves."""
    x = _volume(operand)
    if x.dtype in WEIGHTS:
        raise IllTyped(f"expected numbers that stand for themselves, found {operand}: {x}: cast them to f32")
    return x


def _shape(operand, rank, what):
    """Type of an operand that is a constant of known shape."""
    if len(operand.type.shape) != rank or any(isinstance(n, Extent) for n in operand.type.shape):
        raise IllTyped(f"expected {what}, found {operand}: {operand.type}: reshape them")
    return operand.type


def _channelwise(operand, of):
    """Raise unless an operand, where there is one, has a number for each channel of a volume type."""
    if operand is not None:
        t = _shape(operand, 1, "a number for each channel")
        if t.shape[0] != of.shape[0]:
            raise IllTyped(f"expected a number for each of {of.shape[0]} channels, found {operand}: {t}: give "
                           f"{of.shape[0]}")
        if t.dtype != of.sums:
            raise IllTyped(f"expected numbers of {of.sums} for {of}, found {operand}: {t}: convert them")


def _weighted(x, w):
    """Raise unless weights are of the type that a volume type is multiplied by."""
    wanted = WEIGHTS.get(x.dtype, x.dtype)
    if w.dtype != wanted:
        same = "operands of one element type" if wanted == x.dtype else f"weights of {wanted}"
        raise IllTyped(f"expected {same}, found {x} and {w}: convert one of them")


def _standing(call, name, of, *types):
    """Raise unless an operand, a number for each channel of a type, is there just where one of `types` needs it."""
    operand, needed = call[name], any(t.dtype in WEIGHTS for t in types)
    if needed != (operand is not None):
        raise IllTyped(f"expected {name if needed else f'no {name}'} for {' and '.join(map(str, types))}, found "
                       f"{operand or 'none'}: {'give a number for each channel' if needed else 'remove it'}")
    _channelwise(operand, of)


def _zero(call, *types):
    """Raise unless zero is one of the integers of the types, 0 where none of them are such."""
    zero, most = call["zero"], 255 if any(t.dtype in WEIGHTS for t in types) else 0
    if not (isinstance(zero, int) and 0 <= zero <= most):
        raise IllTyped(f"expected zero within 0..{most} for {types[-1]}, found {zero!r}: correct it")


def _dtype(call, name, default=None):
    """An attribute that is an element type; `default` where it is None."""
    found = default if call[name] is None else call[name]
    if found not in ITEMSIZE:
        raise IllTyped(f"expected {name} to be one of {', '.join(ITEMSIZE)}, found {found!r}: correct it")
    return found


def _triple(call, name, least=1):
    value = call[name]
    if not (isinstance(value, tuple) and len(value) == 3 and all(isinstance(v, int) and v >= least for v in value)):
        raise IllTyped(f"expected {name} to be three integers (z, y, x) of at least {least}, found {value!r}: "
                       "correct it")
    return value


def _shrunk(x, taps, dilation):
    """Extents of what a window of so many taps leaves."""
    return _less(x, [d * (k - 1) for k, d in zip(taps, dilation)])


def _less(x, lost):
    extents = tuple(n - less for n, less in zip(x.shape[1:], lost))
    for axis, n, less in zip(AXES, extents, lost):
        if isinstance(n, int) and n < 1:
            raise IllTyped(f"expected at least {less + 1} voxels along {axis}, found {x}: give the network an input no "
                           "smaller than its field of view")
    return extents


def _activation(kind):
    pair = isinstance(kind, tuple) and len(kind) == 2 and all(isinstance(v, Real) for v in kind)
    if not (pair or kind in (None, "relu")):
        raise IllTyped(f'expected an activation "relu" or (a, b) for a tanh(b s), found {kind!r}: make it a call of '
                       "its own")


ONES, NONE = (1, 1, 1), (0, 0, 0)

#            result[c, p] =
OPERATORS = {
    # zero + activation(bias[c] + onto[c, p] + factors[c] sum_{i, k} weight[c, i, k] x[i, p + dilation k]), what is
    # absent left out; elements of the result are those of the sums unless said. With mix, which follows that:
    # mix_bias[d] + sum_c mix[d, c] result[c, p]
    "conv3d": Operator(_conv3d, ("x", "weight"), ("bias", "onto", "factors", "mix", "mix_bias"),
                       {"dilation": ONES, "activation": None, "result": None, "zero": 0}),
    # max_k x[c, p + dilation k], k over the window
    "max_filter": Operator(_max_filter, ("x",), (), {"window": ONES, "dilation": ONES}),
    # x[c, p] + bias[c]
    "bias": Operator(_bias, ("x", "bias"), pointwise=True),
    # x[c, p] by[c]
    "scale": Operator(_scale, ("x", "by"), pointwise=True),
    # max(x[c, p], 0)
    "relu": Operator(_relu, ("x",), pointwise=True),
    # a tanh(b x[c, p])
    "tanh": Operator(_tanh, ("x",), (), {"a": 1.0, "b": 1.0}, pointwise=True),
    # x[c, p] + y[c, p]
    "add": Operator(_add, ("x", "y"), pointwise=True),
    # the operands' channels one after the other
    "concat": Operator(_concat, variadic=True),
    # x[first + c, p], fewer than end channels
    "channels": Operator(_channels, ("x",), (), {"first": 0, "end": None}),
    # x[c, low + p], high voxels fewer at the far sides
    "crop": Operator(_crop, ("x",), (), {"low": NONE, "high": NONE}),
    # x[c, p] in other elements; zero + by[c] x[c, p] in u8, and back
    "cast": Operator(_cast, ("x",), ("by",), {"to": "f32", "zero": 0}),
}
VIEWS = ("channels", "crop")  # parts of what was computed before
