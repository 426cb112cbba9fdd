r"""Where each value lies: lifetimes become offsets in one arena, so the memory of a run is known before it.

Values that need no memory of their own share another's::

    %c = concat(%a, %b)             a and b are written into c from the first:      | a | b |  =  c
    %v = channels(%x, 1, 3)         v is a part of x
    %r = conv3d(.., onto=%s)        s is written where r will be, and so is what a pointwise call reads, where nothing
                                    else needs it afterwards

Those that share lie in one buffer, which lives from the first of them to the last use of any. The function's inputs
and its result are arrays of the caller. Buffers that live at the same step never overlap. Each is laid at the lowest
offset that is free for as long as it lives, the largest first (Pisarchyk and Lee, "Efficient memory management for deep
neural net inference", 2020); while that takes more than some step needs, what came to lie highest is laid first in
another attempt.
"""
import math
from dataclasses import dataclass

from znn.graph.ir import Var
from znn.graph.operators import OPERATORS

LINE = 64      # bytes: buffers begin on cache lines
ATTEMPTS = 50  # at an arrangement that takes no more than some step needs


@dataclass(frozen=True)
class Buffer:
    """Memory of `size` bytes that is in use from step `first` to step `last`, both included."""

    name: str
    size: int
    first: int
    last: int

    def meets(self, other):
        """Whether the two are in use at the same step."""
        return self.first <= other.last and other.first <= self.last


def arrange(buffers):
    """Offsets at which buffers that are in use together do not overlap.

    Parameters
    ----------
    buffers : sequence of Buffer

    Returns
    -------
    offsets : dict of str to int
        Bytes, multiples of a cache line, by the name of the buffer.
    peak : int
        Bytes of the whole arena.
    """
    order = sorted(buffers, key=lambda b: (-b.size, b.first, b.name))
    least = largest_live(buffers)
    best = {}, math.inf
    for _ in range(ATTEMPTS):
        offsets, peak = _lay(order)
        best = min(best, (offsets, peak), key=lambda found: found[1])
        if best[1] <= least:
            break
        highest = next(b for b in order if offsets[b.name] + _lines(b.size) == peak)
        order = [highest, *(b for b in order if b is not highest)]
    return best


def _lay(order):
    """Offsets and peak when buffers are laid one after the other, each as low as it can be."""
    placed = []  # (offset, end, buffer)
    for buffer in order:
        offset, size = 0, _lines(buffer.size)
        for start, end, _ in sorted((p for p in placed if p[2].meets(buffer)), key=lambda p: p[0]):
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, buffer))
    return {b.name: offset for offset, _, b in placed}, max((end for _, end, _ in placed), default=0)


def _lines(size):
    """Bytes of the cache lines that so many bytes take."""
    return -(-size // LINE) * LINE


def largest_live(buffers):
    """Most bytes, in whole cache lines, that are in use at one step: no arrangement needs less."""
    steps = {b.first for b in buffers}
    return max((sum(_lines(b.size) for b in buffers if b.first <= step <= b.last) for step in steps), default=0)


@dataclass(frozen=True)
class Plan:
    """The memory of a function of known extents.

    Attributes
    ----------
    homes : dict of str to (str, int)
        For each variable the name of the buffer, input or result that it lies in, and the byte at which it begins.
    buffers : tuple of Buffer
        Those in the arena: of values, named after one of them, and of workspaces, named by `workspace`.
    offsets : dict of str to int
        Of each buffer in the arena.
    peak : int
        Bytes of the arena.
    """

    homes: dict
    buffers: tuple
    offsets: dict
    peak: int


def workspace(name):
    """Name of the buffer that the step binding a variable works in."""
    return f"{name} workspace"


def plan(function, workspaces=None):
    """The memory that a run of a function takes.

    Parameters
    ----------
    function : Function
        Of known extents.
    workspaces : dict of str to int, optional
        Bytes that the step binding a variable needs while it runs, beside its operands.

    Returns
    -------
    Plan
    """
    within = _sharing(function)
    homes = {v.name: _home(within, v.name) for v in (*function.params, *(each.var for each in function.lets))}
    sizes = {each.var.name: each.var.type.nbytes for each in function.lets}
    last = _last_uses(function)
    lives = {}
    for step, each in enumerate(function.lets):
        root = homes[each.var.name][0]
        if root in sizes and root != function.result.name:
            first, end = lives.get(root, (step, step))
            lives[root] = first, max(end, last[each.var.name])
    buffers = [Buffer(name, sizes[name], *life) for name, life in lives.items()]
    buffers += [Buffer(workspace(each.var.name), workspaces[each.var.name], step, step)
                for step, each in enumerate(function.lets) if (workspaces or {}).get(each.var.name)]
    return Plan(homes, tuple(buffers), *arrange(buffers))


def _last_uses(function):
    """The last step that reads each variable; its own where none does. The result is read after the last step."""
    last = {p.name: 0 for p in function.params}
    for step, each in enumerate(function.lets):
        last |= {v.name: step for v in each.call.variables}
        last[each.var.name] = step
    return last | {function.result.name: len(function.lets)}


def _home(within, name):
    offset = 0
    while name in within:
        name, further = within[name]
        offset += further
    return name, offset


def _sharing(function):
    """For each variable that lies within another: that one, and at which byte."""
    within, last, uses = {}, _last_uses(function), function.uses
    own = {each.var.name for each in function.lets if each.call.op != "channels"} - {function.result.name}
    for step, each in enumerate(function.lets):
        name, call = each.var.name, each.call
        if call.op == "channels":
            x = call["x"]
            within[name] = x.name, x.type.like(call["first"], *x.type.shape[1:]).nbytes
        elif call.op == "concat":
            offset = 0
            for a in call.args:
                if a.name in own and a.name not in within:
                    within[a.name] = name, offset
                offset += a.type.nbytes
        else:
            old = overwritten(call)
            free = old is not None and old.name in own and uses[old.name] == 1
            if free and _last_of_all(within, last, old.name, step):
                within[old.name] = name, 0
    return within


def overwritten(call):
    """The operand that a call can write its result over; None where there is none."""
    if OPERATORS[call.op].pointwise:
        return call["x"] if isinstance(call["x"], Var) else None
    return call["onto"] if call.op == "conv3d" else None


def _last_of_all(within, last, name, step):
    """Whether nothing that lies within a variable is read at `step` or later, but itself."""
    return all(last[v] < step for v in within if v != name and _lies_within(within, v, name))


def _lies_within(within, name, host):
    while name in within:
        name = within[name][0]
        if name == host:
            return True
    return False
