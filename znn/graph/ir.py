"""The representation of a network: a function in A-normal form, each call bound by a `let` to a variable of its own.

::

    expression              text
    Var                     %conv1a
    Constant                @conv1a.weight             its values lie beside the text, in Function.weights
    Call                    conv3d(%x, @conv1a.weight, dilation=(1, 2, 2))
    Let                     let %conv1a: f32[24, z, y - 4, x - 4] = conv3d(...)
    Function                fn net(%x: f32[1, z, y, x]) -> ... { constants, lets, return %conv1a }

Functions are values: a pass makes another one and leaves the first as it was. `znn.graph.text` reads what they
print, `znn.graph.operators` says which calls there are and what type each has.
"""
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from znn.graph.errors import IllTyped
from znn.graph.operators import OPERATORS, infer
from znn.graph.types import TensorType, dtype_name, least_extents


@dataclass(frozen=True)
class Var:
    """A value that the function takes or computes."""

    name: str
    type: TensorType

    def __str__(self):
        return f"%{self.name}"


@dataclass(frozen=True)
class Constant:
    """Weights, by name."""

    name: str
    type: TensorType

    def __str__(self):
        return f"@{self.name}"


@dataclass(frozen=True)
class Call:
    """An operator applied to operands.

    Attributes
    ----------
    op : str
        A key of `OPERATORS`.
    args : tuple of (Var, Constant or None)
        In the order of the operator's operands; None for an optional one that is absent.
    attributes : tuple of (str, value)
        Those that differ from the operator's defaults, in the operator's order.
    """

    op: str
    args: tuple
    attributes: tuple = ()

    def __getitem__(self, name):
        """An operand or an attribute by its name."""
        operator = OPERATORS[self.op]
        if name in operator.attributes:
            return dict(self.attributes).get(name, operator.attributes[name])
        return self.args[(*operator.operands, *operator.optional).index(name)]

    @property
    def variables(self):
        """The operands that are variables; list."""
        return [a for a in self.args if isinstance(a, Var)]

    def __str__(self):
        operator = OPERATORS[self.op]
        required = self.args if operator.variadic else self.args[:len(operator.operands)]
        optional = zip(operator.optional, self.args[len(operator.operands):])
        given = [*map(str, required), *(f"{name}={a}" for name, a in optional if a is not None),
                 *(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v!r}" for k, v in self.attributes)]
        return f"{self.op}({', '.join(given)})"

    def changed(self, **parts):
        """The call with other operands or attributes, by name."""
        operator = OPERATORS[self.op]
        given = {name: parts.get(name, self[name]) for name in (*operator.operands, *operator.optional)}
        return call(self.op, **given, **{name: parts.get(name, self[name]) for name in operator.attributes})


def call(op, *args, **named):
    """A `Call`: operands in order, optional ones and attributes by name."""
    operator = OPERATORS[op]
    if not operator.variadic:
        names = (*operator.operands, *operator.optional)
        args = (*args, *(named.get(name) for name in names[len(args):]))
    attributes = tuple((k, named[k]) for k, default in operator.attributes.items() if named.get(k, default) != default)
    return Call(op, tuple(args), attributes)


@dataclass(frozen=True)
class Let:
    """A call and the variable that it is bound to."""

    var: Var
    call: Call


def let(name, call):
    """A `Let` of the type that the call has.

    Raises
    ------
    IllTyped
        If the operands do not fit; the message begins with `name`.
    """
    return Let(Var(name, infer(name, call)), call)


@dataclass(frozen=True)
class Function:
    """A network for inference.

    Attributes
    ----------
    name : str
    params : tuple of Var
    lets : tuple of Let
        Each uses what came before it.
    result : Var
    weights : mapping of str to ndarray
        Values of the constants; two functions are equal when their texts are.
    """

    name: str
    params: tuple
    lets: tuple
    result: Var
    weights: Mapping = field(default_factory=dict, compare=False, repr=False)

    @property
    def constants(self):
        """The constants in the order of their first use; tuple."""
        return tuple(dict.fromkeys(a for each in self.lets for a in each.call.args if isinstance(a, Constant)))

    @property
    def definitions(self):
        """The call of each variable that a let binds, by the variable's name."""
        return {each.var.name: each.call for each in self.lets}

    @property
    def uses(self):
        """How often each variable is used, being the result included; Counter by name."""
        return Counter([v.name for each in self.lets for v in each.call.variables] + [self.result.name])

    @property
    def least(self):
        """The least value of each symbol for which everything computed has a voxel; dict."""
        return least_extents([p.type for p in self.params] + [each.var.type for each in self.lets])

    def __str__(self):
        params = ", ".join(f"{p}: {p.type}" for p in self.params)
        return "\n".join([f"fn {self.name}({params}) -> {self.result.type} {{",
                          *(f"  const {c}: {c.type}" for c in self.constants),
                          *(f"  let {each.var}: {each.var.type} = {each.call}" for each in self.lets),
                          f"  return {self.result}", "}"])

    def at(self, sizes):
        """The function where symbols have the values of the dict `sizes`."""
        variables = {p.name: replace(p, type=p.type.at(sizes)) for p in self.params}
        lets = []
        for old in self.lets:
            args = tuple(variables[a.name] if isinstance(a, Var) else a for a in old.call.args)
            lets.append(let(old.var.name, replace(old.call, args=args)))
            variables[old.var.name] = lets[-1].var
        return replace(self, params=tuple(variables[p.name] for p in self.params), lets=tuple(lets),
                       result=variables[self.result.name])


def constant(weights, name, array):
    """A constant of these values, kept in the dict `weights` under `name`, or under another where that is taken."""
    stem, number = name.partition(":")[0], 1
    while name in weights and not np.array_equal(weights[name], array):
        number += 1
        name = f"{stem}:{number}"
    weights[name] = array
    return Constant(name, TensorType(dtype_name(array.dtype), array.shape))


def check(function):
    """The function, if every variable is bound once and before it is used, and has the type that its call has.

    Raises
    ------
    IllTyped
    """
    bound = {}
    for param in function.params:
        _bind(bound, param)
    for each in function.lets:
        for v in each.call.variables:
            _bound(bound, v, each.var.name)
        if infer(each.var.name, each.call) != each.var.type:
            raise IllTyped(f"{each.var.name} ({each.call.op}): expected the declared type {each.var.type}, found "
                           f"{infer(each.var.name, each.call)}: correct the declaration")
        _bind(bound, each.var)
    _bound(bound, function.result, "return")
    return function


def _bind(bound, var):
    if var.name in bound:
        raise IllTyped(f"{var.name}: expected one binding, found a second: give one of them another name")
    bound[var.name] = var


def _bound(bound, var, where):
    if bound.get(var.name) != var:
        raise IllTyped(f"{where}: expected a variable bound before, found {var}: {var.type}: bind it, or use another")
