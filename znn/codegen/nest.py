"""A contraction and its schedule as one kernel.

The generated function is ``kernel(out, a, b, bias, first_task, last_task)``: the parallel loops are numbered through as
tasks, everything inside them is part of the kernel, with constant extents and strides.  From outside to inside::

    parallel loops    task number -> block               y:1 parallel
    plain loops       real loops                         x:48, co:8
      -- scope: accumulators are zeroed here, finished and stored at its end --
    reduction loops   real loops, accumulators in registers    ci:1, ky:1
    register tile     unrolled; vectors along one dimension    kx:1 unroll, co:1 unroll, x:1 vector

A range that is not a multiple of its step runs its last, shorter block as a copy of the code with smaller constants;
the last vector of a row is masked.  Where a reduction loop stands outside the scope the kernel adds to what is there.
"""
import math
from dataclasses import dataclass
from functools import cached_property

from znn.codegen.emit import I1, I64, Emitter
from znn.loops.schedule import IllegalSchedule, Loop, Schedule

MAX_CHUNKS = 8  # vectors of a reduction that one tile unrolls


@dataclass(frozen=True)
class Epilogue:
    """What happens to a finished sum: add to what `out` holds, add a bias, apply an activation ("relu" or none)."""

    accumulate: bool = False
    bias: bool = False
    activation: str | None = None


PLAIN = Epilogue()


@dataclass(frozen=True)
class At:
    """An element offset into each tensor, part run-time value and part constant."""

    value: object
    constant: int


class Nest:
    """The kernel of `contraction` under `schedule`.

    Parameters
    ----------
    contraction : Contraction
    schedule : Schedule
        Legal for the contraction.
    target : Target
    dtype : numpy.dtype
    epilogue : Epilogue
    packing : Packing, optional
        Layout of operand b, if it is packed.

    Attributes
    ----------
    tasks : int
        How many tasks the parallel loops make.
    copies : int
        Private copies of `out` that parallel reductions write, one after the other; the caller adds them up.

    Raises
    ------
    IllegalSchedule
        If the schedule is not legal, or splits a sum in parallel that has a bias or an activation to follow.
    """

    def __init__(self, contraction, schedule, target, dtype, epilogue=PLAIN, packing=None):
        schedule.check(contraction)
        self.c, self.epilogue = contraction, epilogue
        vector = bool(schedule.loops) and schedule.loops[-1].mark == "vector"
        self.e = Emitter(target, dtype, "ppppii", None if vector else 1)
        self.vector_dim = schedule.loops[-1].dim if vector else None
        self.schedule = schedule = _fit_vector(contraction, schedule, self.e.lanes, target.registers)
        self.loops, ranges = schedule.loops, schedule.ranges(contraction)
        self.counts = [-(-r // loop.step) for r, loop in zip(ranges, self.loops)]
        self.n_parallel = sum(loop.mark == "parallel" for loop in self.loops)
        self.tasks = math.prod(self.counts[:self.n_parallel])
        self.tile = self._tile_start(ranges, target.registers)
        self.scope = self.tile
        while self.scope > self.n_parallel and self.loops[self.scope - 1].dim in contraction.reductions:
            self.scope -= 1
        self._advances(packing)
        self._starts = [self.c.out.start, self.c.a.start, 0 if packing else self.c.b.start, 0]

    @cached_property
    def module(self):
        """The kernel as an llvmlite module."""
        self._build(self._starts)
        return self.e.module

    # --- planning ---------------------------------------------------------------------------------------------
    def _tile_start(self, ranges, registers):
        """Index of the first loop of the longest innermost run of unrolled loops whose sums fit the registers."""
        start = len(self.loops)
        for k in range(len(self.loops) - 1, -1, -1):
            if self.loops[k].mark not in ("unroll", "vector"):
                break
            sums, loads = 1, 0
            for i in range(k, len(self.loops)):
                count = -(-ranges[i] // self.e.lanes) if self.loops[i].mark == "vector" else self.counts[i]
                if self.loops[i].dim not in self.c.reductions:
                    sums *= count
                if self.loops[i].dim == self.vector_dim:
                    loads = count
            if sums + loads + 1 > registers and start < len(self.loops):
                break
            start = k
        return start

    def _advances(self, packing):
        """Elements that one step of each loop moves in out, a, b and bias."""
        tensors = [self.c.out, self.c.a, self.c.b] + ([self.c.bias] if self.epilogue.bias else [])
        self.advance = [[loop.step * t.stride(loop.dim) for loop in self.loops] for t in tensors]
        if packing:
            self.advance[2] = packing_advance(packing, self.loops)
        self.copies = 1
        size = 1 + sum(s * (self.c.extents[d] - 1) for d, s in self.c.out.strides)
        for k in reversed(range(self.n_parallel)):
            if self.loops[k].dim in self.c.reductions:
                self.advance[0][k] = self.copies * size
                self.copies *= self.counts[k]
        if self.copies > 1 and (self.epilogue != PLAIN):
            raise IllegalSchedule("a sum that is split over parallel tasks has no place for bias, activation or "
                                  "accumulation: mark an output dimension parallel instead")

    # --- control ----------------------------------------------------------------------------------------------
    def _build(self, starts):
        e = self.e
        first, last = e.fn.args[4:]
        origin = [At(None, s) for s in starts[:len(self.advance)]]

        def task(i):
            number = e.b.add(first, i)
            digits = []
            for k in reversed(range(self.n_parallel)):
                digits.insert(0, e.b.srem(number, I64(self.counts[k])))
                number = e.b.sdiv(number, I64(self.counts[k]))
            self._outer(0, dict(self.c.extents), origin, [], [], digits)
            return []

        e.loop(e.b.sub(last, first), [], task)
        e.b.ret_void()

    def _outer(self, k, sizes, at, firsts, lasts, digits):
        """Loops outside the scope; `firsts` and `lasts` collect whether the sums are at their first and last step."""
        if k == self.scope:
            return self._sum(sizes, at, firsts, lasts)
        e, loop = self.e, self.loops[k]
        full, rest = divmod(sizes[loop.dim], loop.step)
        steps = full + (rest > 0)

        def inside(i, size):
            starts, ends = list(firsts), list(lasts)
            if loop.dim in self.c.reductions and loop.mark != "parallel" and steps > 1:
                index = I64(i) if isinstance(i, int) else i
                starts.append(e.b.icmp_signed("==", index, I64(0)))
                ends.append(e.b.icmp_signed("==", index, I64(steps - 1)))
            self._outer(k + 1, sizes | {loop.dim: size}, self._moved(at, k, i), starts, ends, digits)
            return []

        if k < self.n_parallel:
            if full:
                e.when(e.b.icmp_signed("<", digits[k], I64(full)), [], lambda: inside(digits[k], loop.step))
            if rest:
                e.when(e.b.icmp_signed("==", digits[k], I64(full)), [], lambda: inside(full, rest))
        else:
            if full > 1:
                e.loop(I64(full), [], lambda i: inside(i, loop.step))
            elif full:
                inside(0, loop.step)
            if rest:
                inside(full, rest)
        return None

    def _sum(self, sizes, at, firsts, lasts):
        """One set of accumulators from zero to memory."""
        places = self._places(sizes)
        acc = self._reduce(self.scope, sizes, at, [self.e.zero()] * len(places), places)
        self._finish(acc, places, at, firsts, lasts)

    def _reduce(self, k, sizes, at, acc, places):
        """Reduction loops with the accumulators carried in registers, down to the tile."""
        if k == self.tile:
            return self._tile(sizes, at, acc, places)
        loop = self.loops[k]
        full, rest = divmod(sizes[loop.dim], loop.step)
        inside = lambda i, size, acc: self._reduce(  # noqa: E731
            k + 1, sizes | {loop.dim: size}, self._moved(at, k, i), acc, places)
        if full > 1:
            acc = self.e.loop(I64(full), acc, lambda i, *acc: inside(i, loop.step, list(acc)))
        elif full:
            acc = inside(0, loop.step, acc)
        return inside(full, rest, acc) if rest else acc

    # --- the register tile --------------------------------------------------------------------------------------
    def _unrolled(self, sizes, only_outputs=False):
        """Yield (element offset in each tensor, lanes in use) for every vector operation of the tile, in order."""
        e = self.e

        def walk(k, sizes, offsets):
            if k == len(self.loops):
                yield offsets, 1
                return
            loop = self.loops[k]
            if only_outputs and loop.dim in self.c.reductions:
                yield from walk(k + 1, sizes, offsets)
            elif loop.mark == "vector":
                for x in range(0, sizes[loop.dim], e.lanes):
                    yield [o + x * a[k] for o, a in zip(offsets, self.advance)], min(e.lanes, sizes[loop.dim] - x)
            else:
                for i, x in enumerate(range(0, sizes[loop.dim], loop.step)):
                    inner = sizes | {loop.dim: min(loop.step, sizes[loop.dim] - x)}
                    yield from walk(k + 1, inner, [o + i * a[k] for o, a in zip(offsets, self.advance)])

        yield from walk(self.tile, sizes, [0] * len(self.advance))

    def _places(self, sizes):
        """Offset in `out` of each accumulator -> (its number, its offset in bias, lanes in use)."""
        places = {}
        for offsets, lanes in self._unrolled(sizes, only_outputs=True):
            places[offsets[0]] = (len(places), offsets[-1], lanes)
        return places

    def _tile(self, sizes, at, acc, places):
        acc, loaded = list(acc), {}

        def operand(t, offset, lanes):
            key = t, offset, lanes
            if key not in loaded:
                loaded[key] = self._load(t, at[t], offset, lanes)
            return loaded[key]

        for offsets, lanes in self._unrolled(sizes):
            n = places[offsets[0]][0]
            acc[n] = self.e.fma(operand(1, offsets[1], lanes), operand(2, offsets[2], lanes), acc[n])
        return acc

    def _finish(self, acc, places, at, firsts, lasts):
        """Add up lanes, add what is there already, epilogue, store."""
        e, b = self.e, self.e.b
        summed = self.vector_dim in self.c.reductions
        values = [e.sum(v) for v in acc] if summed else list(acc)
        target = list(places.items())

        def existing(*values):
            return [b.fadd(v, self._load(0, at[0], o, lanes, summed)) for v, (o, (_, _, lanes)) in zip(values, target)]

        def finished(*values):
            out = []
            for v, (_, (_, o, lanes)) in zip(values, target):
                if self.epilogue.bias:
                    v = b.fadd(v, self._load(3, at[3], o, lanes, summed))
                out.append(e.relu(v) if self.epilogue.activation == "relu" else v)
            return out

        if self.epilogue.accumulate:
            values = existing(*values)
        elif firsts:
            values = e.when(b.not_(_all(b, firsts)), values, existing)
        if self.epilogue.bias or self.epilogue.activation:
            values = e.when(_all(b, lasts), values, finished) if lasts else finished(*values)
        for v, (o, (_, _, lanes)) in zip(values, target):
            pointer = self._pointer(0, at[0], o)
            if summed:
                b.store(v, pointer)
            else:
                e.store_strided(v, pointer, self.advance[0][-1] if self.vector_dim else 1, lanes)

    # --- addresses ----------------------------------------------------------------------------------------------
    def _moved(self, at, k, i):
        """Offsets after i steps of loop k; i is an int or a run-time value."""
        moved = []
        for a, advance in zip(at, self.advance):
            if isinstance(i, int):
                moved.append(At(a.value, a.constant + i * advance[k]))
            elif advance[k]:
                step = self.e.mul(i, advance[k])
                moved.append(At(step if a.value is None else self.e.b.add(a.value, step), a.constant))
            else:
                moved.append(a)
        return moved

    def _pointer(self, t, at, offset):
        pointer = self.e.fn.args[t]
        if at.value is not None:
            pointer = self.e.at(pointer, at.value)
        return self.e.at(pointer, at.constant + offset)

    def _load(self, t, at, offset, lanes, scalar=False):
        pointer = self._pointer(t, at, offset)
        if scalar:
            return self.e.b.load(pointer)
        return self.e.load_strided(pointer, self.advance[t][-1] if self.vector_dim else 0, lanes)


def packing_advance(packing, loops):
    """The packing's advances, extended to the loops that the generator put in (they split the vector loop)."""
    advance = list(packing.advance)
    if len(loops) > len(advance):
        advance.insert(-1, advance[-1] * loops[-2].step)
    return advance


def _fit_vector(contraction, schedule, lanes, registers):
    """Strip-mine a vector loop that is longer than the registers hold."""
    if not schedule.loops or schedule.loops[-1].mark != "vector":
        return schedule
    loop, size = schedule.loops[-1], schedule.ranges(contraction)[-1]
    most = lanes * (MAX_CHUNKS if loop.dim in contraction.reductions else (registers - 2) // 2)
    if size <= most:
        return schedule
    return Schedule((*schedule.loops[:-1], Loop(loop.dim, most, ""), loop))


def _all(b, conditions):
    out = I1(1)
    for condition in conditions:
        out = b.and_(out, condition)
    return out


