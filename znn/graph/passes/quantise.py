r"""A network of float32 whose convolutions, but for the first, multiply integers of eight bits.

Number q of channel c of a volume of u8 stands for ``(q - zero) / by[c]``; weights become i8, with a factor for each of
their outputs. What a volume's numbers stand for is part of the weights that it meets, and what the result's stand for
is part of the factors, so that nothing is computed but integers on the way from one convolution to the next::

    %a = conv3d(%x, @a', bias=@a.bias', result="u8")                              f32 * f32 -> u8, by in a'
    %b = conv3d(%a, @b.i8, bias=@b.bias', factors=@b.factors, result="u8")        u8 * i8 -> u8, summed in i32
    %c = conv3d(%b, @c.i8, bias=@c.bias', factors=@c.factors)                     u8 * i8 -> f32

Which values have one element type, and which convolutions stay as they are, is as in `narrow`, but for the last ones,
which give float32; and calls that compute with the numbers of a voxel have none of u8. Where nothing in such a set of
values is less than 0, zero is 0, else 128 (Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", 2018; with factors of channels: Krishnamoorthi, arXiv 1806.08342).
"""
from dataclasses import dataclass, replace

import numpy as np

from znn.graph.errors import GraphError
from znn.graph.ir import Var, call, constant, let
from znn.graph.passes.narrow import classes, element_types, inner
from znn.graph.passes.rewriting import Site

U8, MOST, SIDE = "u8", 255, 127  # the largest number, and the largest on either side of 128 and in weights
LEAST = 1 / 64  # of a volume's largest value: what a channel is given room for, whatever was seen of it


@dataclass(frozen=True)
class Standing:
    """What numbers of a volume stand for: ``(q - zero) / by[c]``; `by` is float64, (channels,)."""

    by: np.ndarray
    zero: int


def watched(function):
    """Names of the variables whose largest values `quantise` must know; set of str."""
    return _Quantiser(function, {}).watched()


def quantise(function, ranges):
    """With elements of type u8 inside, read by all convolutions but the first.

    Parameters
    ----------
    function : Function
        All of it "f32".
    ranges : mapping of str to sequence of float
        For each variable of `watched` the largest magnitude that its values have, by channel; what is larger is cut
        off.

    Raises
    ------
    GraphError
        If one of them is missing or has not a number for each channel, or weights or ranges are not finite.
    """
    return _Quantiser(function, ranges).made()


class _Quantiser:
    def __init__(self, function, ranges):
        self.function, self.ranges = function, ranges
        self.definitions, self.site = function.definitions, Site(function)
        self.together = classes(function)
        self.inside = {name for name in inner(function, self.together, last=True) if _summable(self.definitions[name])}
        self.chosen = element_types(function, self.together, self.inside, U8)
        signed = {self.together[name] for name in self.definitions if not self._nonnegative(name)}
        self.zeros = {name: 128 if of in signed else 0 for name, of in self.together.items()}
        self.lets, self.standing = [], {}
        self.known = {key: p for p in function.params for key in (p, (p, "f32"))}

    def watched(self):
        stored = [n for n, c in self.definitions.items() if c.op == "conv3d" and self.chosen[n] == U8]
        read = [self.definitions[n]["x"].name for n in self.inside]
        return {leaf for n in (*stored, *read) for leaf in self._leaves(n) if not _bounded(self.definitions[leaf])}

    def made(self):
        for each in self.function.lets:
            self._convolution(each) if each.call.op == "conv3d" else self._other(each)
        function = replace(self.function, lets=tuple(self.lets), result=self.known[self.function.result])
        return replace(function, weights={c.name: self.site.weights[c.name] for c in function.constants})

    # --- what is known of values ------------------------------------------------------------------------------
    def _leaves(self, name):
        """Names of the calls that compute the values which a variable is a choice of."""
        c = self.definitions[name]
        passes = c.op in ("max_filter", "concat", "channels", "crop")
        return [leaf for v in c.variables for leaf in self._leaves(v.name)] if passes else [name]

    def _nonnegative(self, name):
        c = self.definitions.get(name)
        if c is None:
            return False
        if c.op in ("max_filter", "concat", "channels", "crop"):
            return all(self._nonnegative(v.name) for v in c.variables)
        return c.op == "relu" or (c.op == "conv3d" and c["activation"] == "relu")

    def _largest(self, name):
        """Largest magnitudes of a variable by channel."""
        c = self.definitions[name]
        if c.op == "concat":
            return np.concatenate([self._largest(v.name) for v in c.variables])
        if c.op in ("max_filter", "crop", "channels"):
            found = self._largest(c["x"].name)
            return found[c["first"]:c["end"]] if c.op == "channels" else found
        channels = (c["weight"] if c.op == "conv3d" else c["x"]).type.shape[0]
        return np.full(channels, _bounded(c)) if _bounded(c) else self._seen(name, channels)

    def _seen(self, name, channels):
        found = np.array(self.ranges.get(name, ()), np.float64)
        if found.shape != (channels,) or not np.isfinite(found).all() or (found < 0).any():
            raise GraphError(f"{name}: expected the largest magnitude of each of {channels} channels, found "
                             f"{self.ranges.get(name)}: give the ranges that this network was calibrated to, or "
                             "samples to calibrate it on")
        least = LEAST * found.max(initial=0)
        return np.maximum(found, least if least > 0 else 1)

    def _standing(self, name, zero):
        return Standing((SIDE if zero else MOST) / self._largest(name), zero)

    # --- calls --------------------------------------------------------------------------------------------------
    def _bind(self, each, c, standing=None):
        self.lets.append(let(each.var.name, c))
        var = self.lets[-1].var
        self.known[each.var] = self.known[each.var, self.chosen[each.var.name]] = var
        self.standing[var] = standing

    def _other(self, each):
        args = tuple(self.known[a] if isinstance(a, Var) else a for a in each.call.args)
        name, kept = each.var.name, self.chosen[each.var.name] == U8
        self._bind(each, replace(each.call, args=args), self._standing(name, self.zeros[name]) if kept else None)

    def _operand(self, atom, wanted):
        """The variable with these elements, cast once for all that need it."""
        if (atom, wanted) not in self.known:
            have, zero = self.known[atom], 0 if self._nonnegative(atom.name) else 128
            standing = self._standing(atom.name, zero) if wanted == U8 else self.standing[have]
            by = self._constant(f"{atom.name}.by", standing.by)
            self.lets.append(self.site.let(atom.name, call("cast", have, by=by, to=wanted, zero=standing.zero)))
            self.known[atom, wanted] = var = self.lets[-1].var
            self.standing[var] = standing if wanted == U8 else None
        return self.known[atom, wanted]

    def _convolution(self, each):
        name, c = each.var.name, each.call
        inside, stored = name in self.inside, self.chosen[name] == U8
        x = self._operand(c["x"], U8 if inside else "f32")
        w, bias = self.site.value(c["weight"], *c["weight"].type.shape), self.site.value(c["bias"])
        bias, factors, activation = np.broadcast_to(bias, len(w)), np.ones(len(w)), c["activation"]
        if inside:
            w, factors, at_zero = _integers(name, w, self.standing[x])
            bias = bias - at_zero
        standing = self._standing(name, self.zeros[name]) if stored else None
        if stored and isinstance(activation, tuple):
            activation = float(np.float32(activation[0] * standing.by[0])), activation[1]
        elif stored:
            bias, factors = bias * standing.by, factors * standing.by
        if not inside:
            w = w * factors.reshape(-1, 1, 1, 1, 1)
        has_bias = c["bias"] is not None or bias.any()
        self._bind(each, c.changed(
            x=x, weight=self._weight(c["weight"], w), onto=c["onto"] and self.known[c["onto"]],
            bias=self._constant(c["bias"].name if c["bias"] else f"{name}.bias", bias) if has_bias else None,
            factors=self._constant(f"{name}.factors", factors) if inside else None, activation=activation,
            result=U8 if stored else None, zero=standing.zero if stored else 0), standing)

    def _weight(self, old, w):
        if w.dtype == np.int8:
            return constant(self.site.weights, f"{old.name}.i8", w)
        return self._constant(old.name, w)

    def _constant(self, name, values):
        return constant(self.site.weights, name, np.ascontiguousarray(values, np.float32))


def _summable(c):
    """Whether no sum of a convolution leaves int32, whatever its integers are."""
    _, *summed = c["weight"].type.shape
    return int(np.prod(summed)) * MOST * SIDE < 1 << 31


def _bounded(c):
    """The largest magnitude of what a call computes where that is known beforehand, else None."""
    if c.op == "tanh":
        return abs(c["a"]) or 1
    return (abs(c["activation"][0]) or 1) if c.op == "conv3d" and isinstance(c["activation"], tuple) else None


def _integers(name, w, standing):
    """Weights as int8 for a volume of integers, what their sums are multiplied by, and what that is of zeros alone."""
    if not np.isfinite(w).all():
        raise GraphError(f"{name}: expected finite weights, found NaN or infinity: give weights that are usable")
    w = w / standing.by.reshape(1, -1, 1, 1, 1)
    largest = np.abs(w).max((1, 2, 3, 4))
    factors = np.where(largest > 0, largest, SIDE) / SIDE
    integers = np.rint(w / factors.reshape(-1, 1, 1, 1, 1)).astype(np.int8)
    return integers, factors, factors * standing.zero * integers.sum((1, 2, 3, 4), dtype=np.int64)
