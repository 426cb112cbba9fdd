"""Rewriting a function by rules, each of which looks at one `let` and the calls that its operands come from.

A rule puts other lets in the place of one; the last of them binds the same variable, so nothing that follows changes.
"""
from dataclasses import replace

import numpy as np

from znn.graph.ir import Var, constant, let
from znn.graph.operators import OPERATORS, VIEWS
from znn.graph.passes.tidy import remove_unused


class Site:
    """What a rule may ask about a function, and what it needs to write lets and constants.

    Attributes
    ----------
    weights : dict of str to ndarray
        The function's, and those that rules have added.
    """

    def __init__(self, function):
        self.weights = dict(function.weights)
        self._calls, self._uses = function.definitions, function.uses
        self._taken = {p.name for p in function.params} | set(self._calls)

    def once(self, atom, op):
        """The call of `op` that binds a variable of which this is the only use; None if it is anything else."""
        made = self._calls.get(atom.name) if isinstance(atom, Var) and self._uses[atom.name] == 1 else None
        return made if made is not None and made.op == op else None

    def made(self, atom, op):
        """`once`, whoever else uses the variable."""
        found = self._calls.get(atom.name) if isinstance(atom, Var) else None
        return found if found is not None and found.op == op else None

    def computed(self, atom):
        """Whether a variable has values of its own: it is no input and no part of another."""
        return atom.name in self._calls and self._calls[atom.name].op not in VIEWS

    def used_once(self, atom):
        """Whether a variable has one use."""
        return self._uses[atom.name] == 1

    def let(self, of, call):
        """A let of a new variable, named after the layer of the variable `of` and the operator."""
        stem = call.op if layer(of) == call.op else f"{layer(of)}.{call.op}"
        number, name = 1, stem
        while name in self._taken:
            number += 1
            name = f"{stem}:{number}"
        self._taken.add(name)
        return let(name, call)

    def value(self, atom, *shape):
        """The numbers of a constant, float64, in another shape if one is given; zero where there is none."""
        numbers = np.zeros(1) if atom is None else self.weights[atom.name].astype(np.float64)
        return numbers.reshape(shape) if shape else numbers

    def constant(self, name, values, like):
        """A constant with elements of the type of `like`, another constant."""
        return constant(self.weights, name, np.ascontiguousarray(values, self.weights[like.name].dtype))


def rewrite(function, *rules):
    """A function to which no rule applies any more.

    Parameters
    ----------
    function : Function
    *rules : callable
        ``rule(let, site)``: the lets in the place of one, or None where the rule does not apply.
    """
    function, changed = remove_unused(function), True
    while changed:
        changed, site, lets = False, Site(function), []
        for each in function.lets:
            found = next(filter(None, (rule(each, site) for rule in rules)), None)
            lets += found or [each]
            changed |= found is not None
        function = remove_unused(replace(function, lets=tuple(lets), weights=site.weights))
    return function


def layer(name):
    """The layer's part of a variable's name: conv1 of conv1.bias:2."""
    stem = name.partition(":")[0]
    head, _, tail = stem.rpartition(".")
    return head if head and tail in OPERATORS else stem


def bare(call):
    """Whether a convolution has nothing after its sum yet."""
    return call["activation"] is None and call["onto"] is None and call["bias"] is None
