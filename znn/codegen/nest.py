"""A contraction and its schedule as one kernel.

The generated function is ``kernel(out, a, b, bias, first_task, last_task)``: the parallel loops are numbered through as
tasks, everything inside them is part of the kernel, with constant extents and strides.  From outside to inside::

    parallel loops    task number -> block               y:1 parallel
    plain loops       real loops                         x:48, co:8
      -- if asked for, what is read of b from here on is packed, before the first loop that uses it again --
      -- scope: accumulators are zeroed here, finished and stored at its end --
    reduction loops   real loops, accumulators in registers    ci:1, ky:1
    register tile     unrolled; vectors innermost        kx:1 unroll, co:1 unroll, x:1 vector

A range that is not a multiple of its step runs its last, shorter block as a copy of the code with smaller constants;
the last vector of a row ends with the row.  Where a reduction loop stands outside the scope the kernel adds to what is
there.
A guarded loop runs from the first to the last step that its guards let through.
"""
from dataclasses import dataclass, replace
from functools import cached_property, partial

from znn.codegen import group, integers
from znn.codegen.emit import I1, I64, Emitter
from znn.codegen.plan import BIAS, LINE, OUT, PLAIN, A, B, Plan


@dataclass(frozen=True)
class At:
    """An element offset into a tensor, part run-time value and part constant."""

    value: object
    constant: int


@dataclass(frozen=True)
class Place:
    """Where code is being written: block sizes by dimension, an At for each tensor and guard, and the conditions under
    which sums begin here, end here and have anything to add."""

    sizes: dict
    at: list
    begins: tuple = ()
    ends: tuple = ()
    counts: tuple = ()


class Nest:
    """The kernel of a plan; parameters and errors are `Plan`'s.

    Attributes
    ----------
    plan : Plan
    """

    def __init__(self, contraction, schedule, target, dtype, epilogue=PLAIN, packed=None):
        self.plan = Plan(contraction, schedule, target, dtype, epilogue, packed)
        self.loops, self.reductions = self.plan.loops, contraction.reductions
        self._target = target

    @cached_property
    def module(self):
        """The kernel as an llvmlite module."""
        self.e = Emitter(self._target, self.plan.dtype, "ppppii", self.plan.lanes)
        self.pointers = list(self.e.fn.args[:4])
        if self.plan.epilogue.stores:
            self.pointers[OUT] = group.numbers(self.e, self.plan.epilogue.stores, self.pointers[OUT])
        self._tasks()
        return self.e.module

    # --- control ----------------------------------------------------------------------------------------------
    def _tasks(self):
        e, plan = self.e, self.plan
        first, last = e.fn.args[4:]
        if plan.packed == "inside":
            self.pointers[B] = e.block(plan.packing.size)

        def task(i):
            number, digits = i, []
            for count in reversed(plan.counts[:plan.n_parallel]):
                digits.insert(0, e.b.srem(number, I64(count)))
                number = e.b.sdiv(number, I64(count))
            self._parallel(0, Place(dict(plan.c.extents), [At(None, s) for s in plan.starts]), digits)
            return []

        e.loop(e.b.sub(last, first), [], task, first)
        e.b.ret_void()

    def _parallel(self, k, place, digits):
        """The block of a task: one of the full ones or the shorter last one."""
        if k == self.plan.n_parallel:
            return self._outer(k, place)
        full, rest = divmod(place.sizes[self.loops[k].dim], self.loops[k].step)
        inside = lambda i, size: self._parallel(k + 1, self._moved(place, k, i, size), digits) or []  # noqa: E731
        if full:
            self.e.when(self.e.b.icmp_signed("<", digits[k], I64(full)), [],
                        lambda: inside(digits[k], self.loops[k].step))
        if rest:
            self.e.when(self.e.b.icmp_signed("==", digits[k], I64(full)), [], lambda: inside(full, rest))
        steps = full + (rest > 0)
        if self.loops[k].dim in self.reductions and steps < self.plan.counts[k]:
            # a short block has no such steps, but there is a private copy of the output for them: it becomes zero
            copy = self._step(place.at[OUT], digits[k], self.plan.advance[OUT][k])
            there = min(self.loops[k].step, place.sizes[self.loops[k].dim])
            empty = self._moved(place, k, 0, there)  # what is packed before the sum must be there
            empty = replace(empty, at=[copy, *empty.at[1:]], counts=(*place.counts, I1(0)))
            self.e.when(self.e.b.icmp_signed(">=", digits[k], I64(steps)), [],
                        lambda: self._parallel(k + 1, empty, digits) or [])
        return None

    def _outer(self, k, place):
        """Plain loops outside the scope."""
        if k == self.plan.pack and self.plan.packed == "inside":
            place = self._pack(place)
        if k == self.plan.scope:
            return self._sum(place)
        loop, e = self.loops[k], self.e
        full, rest = divmod(place.sizes[loop.dim], loop.step)
        if self._guards(k):
            first, count, counts = self._clipped(k, place)
            first = e.least(first, I64(full - 1))  # a sum without a single step is still zero
            steps = first, e.most(count, I64(1))
        else:
            steps, counts = (I64(0), I64(full + (rest > 0))), None

        def inside(i, size):
            moved = self._moved(place, k, i, size)
            if loop.dim in self.reductions and (full + (rest > 0) > 1):
                index, last = I64(i) if isinstance(i, int) else i, e.b.add(steps[0], e.b.sub(steps[1], I64(1)))
                moved = Place(moved.sizes, moved.at, (*place.begins, e.b.icmp_signed("==", index, steps[0])),
                              (*place.ends, e.b.icmp_signed("==", index, last)),
                              place.counts + (() if counts is None else (counts,)))
            self._outer(k + 1, moved)
            return []

        if counts is not None:
            e.loop(steps[1], [], lambda i: inside(i, loop.step), steps[0])
            return None
        if full > 1:
            e.loop(I64(full), [], lambda i: inside(i, loop.step))
        elif full:
            inside(0, loop.step)
        if rest:
            inside(full, rest)
        return None

    def _sum(self, place):
        """One set of accumulators from zero to memory."""
        places = self._accumulators(place.sizes)
        acc = [self.e.zero()] * len(places)
        if self.plan.ahead is not None and self.plan.advance[OUT][-1] == 1:  # time enough until they are written
            for o in places:
                self.e.prefetch(self._pointer(OUT, place.at[OUT], o), level=1, write=True)
        if place.counts:
            acc = self.e.when(_all(self.e.b, place.counts), acc,
                              lambda *acc: self._reduce(self.plan.scope, place, list(acc), places))
        else:
            acc = self._reduce(self.plan.scope, place, acc, places)
        self._finish(acc, places, place)

    def _reduce(self, k, place, acc, places):
        """Reduction loops with the accumulators carried in registers, down to the tile."""
        if k == self.plan.tile:
            return self._tile(place, acc, places)
        loop = self.loops[k]
        full, rest = divmod(place.sizes[loop.dim], loop.step)

        def inside(i, size, acc):
            moved = self._moved(place, k, i, size)
            acc = self._reduce(k + 1, moved, acc, places)
            if k == self.plan.tile - 1:
                self._ask(moved)
            return acc

        if self._guards(k):
            first, count, _ = self._clipped(k, place)
            return self.e.loop(count, acc, lambda i, *acc: inside(i, loop.step, list(acc)), first)
        if full > 1:
            acc = self.e.loop(I64(full), acc, lambda i, *acc: inside(i, loop.step, list(acc)))
        elif full:
            acc = inside(0, loop.step, acc)
        return inside(full, rest, acc) if rest else acc

    def _ask(self, place):
        """Ask the first cache for a share of what a later task reads here."""
        for line in range(self.plan.asked if self.plan.ahead is not None else 0):
            first = self._address(self.pointers[A], place.at[self.plan.ahead], 0)
            self.e.prefetch(self.e.at(first, line * LINE // self.plan.dtype.itemsize), level=1)

    # --- guards -------------------------------------------------------------------------------------------------
    def _guards(self, k):
        return [t for t, g in enumerate(self.plan.c.guards, BIAS + 1) if self.loops[k].dim in self.reductions
                and g.place.stride(self.loops[k].dim)]

    def _clipped(self, k, place):
        """First step of a guarded loop, how many there are (maybe none, or less), and whether there are any."""
        e, (t,) = self.e, self._guards(k)
        steps, extent = self.plan.counts[k], self.plan.c.guards[t - BIAS - 1].extent
        stride, here = self.plan.advance[t][k], place.at[t]
        value = e.b.add(I64(0) if here.value is None else here.value, I64(here.constant))
        low, high = I64(0), e.b.sub(I64(extent - 1), value)  # 0 <= value + stride i < extent
        low = e.b.sub(low, value)
        if stride < 0:
            low, high = e.b.sub(I64(0), high), e.b.sub(I64(0), low)
        first = e.most(e.ceiling(low, abs(stride)), I64(0))
        last = e.least(e.floor(high, abs(stride)), I64(steps - 1))
        count = e.b.add(e.b.sub(last, first), I64(1))
        return first, count, e.b.icmp_signed(">", count, I64(0))

    # --- the register tile --------------------------------------------------------------------------------------
    def _unrolled(self, sizes, only_outputs=False):
        """Yield (element offset in each tensor, lanes in use of each lane loop, step of the sum) for every vector."""
        e, advance, loops = self.e, self.plan.advance, self.loops

        def walk(k, sizes, offsets, step):
            lane_loops = self.plan.lane_loops
            if k == len(loops) - len(lane_loops):
                if len(lane_loops) != 1:
                    yield offsets, tuple(sizes[loops[i].dim] for i in lane_loops), step
                    return
                size, summed = sizes[loops[k].dim], loops[k].dim in self.reductions
                for x in range(0, 1 if only_outputs and summed else size, e.lanes):
                    if not summed and size >= e.lanes:  # the last vector ends with the row: a mask costs more than
                        x = min(x, size - e.lanes)      # to compute some lanes again
                    yield [o + x * a[k] for o, a in zip(offsets, advance)], (min(e.lanes, size - x),), step
                return
            loop = loops[k]
            summed = loop.dim in self.reductions
            if only_outputs and summed:
                yield from walk(k + 1, sizes, offsets, step)
                return
            for i, x in enumerate(range(0, sizes[loop.dim], loop.step)):
                inner = sizes | {loop.dim: min(loop.step, sizes[loop.dim] - x)}
                yield from walk(k + 1, inner, [o + i * a[k] for o, a in zip(offsets, advance)],
                                (*step, i) if summed else step)

        yield from walk(self.plan.tile, sizes, [0] * len(advance), ())

    def _accumulators(self, sizes):
        """Offset in `out` of each accumulator -> (its number, its offset in bias, lanes in use)."""
        places = {}
        for offsets, used, _ in self._unrolled(sizes, only_outputs=True):
            places[offsets[OUT]] = len(places), offsets[BIAS], used
        return places

    def _tile(self, place, acc, places):
        acc, loaded, seen, last = list(acc), {}, set(), ()

        def operand(t, offset, used):
            key = t, offset, used
            if key not in loaded:
                full = t == B and self.plan.packing  # what is packed has zeros beyond its end
                loaded[key] = self._load(t, place.at[t], offset, self._whole if full and len(used) > 1 else used)
            return loaded[key]

        for offsets, used, step in self._unrolled(place.sizes):
            if step != last:  # what is loaded is not kept for a later step: it would take the register of a sum
                seen.update(loaded)
                loaded, last = {}, step
            if (A, offsets[A], used) in seen:
                self.e.forget_loads()
                seen.clear()
            n = places[offsets[OUT]][0]
            acc[n] = self._multiplied(operand(A, offsets[A], used), operand(B, offsets[B], used), acc[n])
        return acc

    def _multiplied(self, a, b, c):
        """c and the products of one element of each lane."""
        if isinstance(self.plan.dtype, group.Group):
            return group.dot(self.e, self.plan.dtype, a, b, c)
        return self.e.fma(a, b, c)

    @cached_property
    def _whole(self):
        return tuple(self.plan.counts[k] for k in self.plan.lane_loops)

    def _finish(self, acc, places, place):
        """Add up lanes, add what is there already, epilogue, store."""
        e, b, epilogue = self.e, self.e.b, self.plan.epilogue
        targets = [(o, bias, self._lanes_out(used)) for o, (_, bias, used) in places.items()]
        values = [self._folded(v) for v in acc]
        pointer = lambda t, o: self._pointer(t, place.at[t], o)  # noqa: E731
        of_channels = lambda first: (e.gather(  # noqa: E731
            pointer(BIAS, o + first), self._kept(self.plan.advance[BIAS], lanes)) for _, o, lanes in targets)

        def existing(*values):
            return [self._added(v, e.gather(pointer(OUT, o), lanes)) for v, (o, _, lanes) in zip(values, targets)]

        def finished(*values):
            if epilogue.bias:
                values = [b.fadd(v, added) for v, added in zip(values, of_channels(0))]
            return [group.finished(e, epilogue, v) for v in values]

        if self.plan.scaled:
            values = [integers.real(e, v) for v in values]
            if epilogue.bias:
                values = [b.fmul(v, factor) for v, factor in zip(values, of_channels(self.plan.factors))]
        if epilogue.accumulate:
            values = existing(*values)
        elif place.begins:
            values = e.when(b.not_(_all(b, place.begins)), values, existing)
        if epilogue.bias or epilogue.activation or epilogue.zero:
            values = e.when(_all(b, place.ends), values, finished) if place.ends else finished(*values)
        if epilogue.stores:
            placed = [(v, [None if i is None else o + i for i in lanes]) for v, (o, _, lanes) in zip(values, targets)]
            group.scatter(e, epilogue.stores, placed, pointer(OUT, 0))
            return
        for v, (o, _, lanes) in zip(values, targets):
            e.scatter(v, pointer(OUT, o), lanes)

    @property
    def _adds(self):
        """What adds sums that are not float32; None for those that are."""
        return partial(integers.added, self.e) if group.sums_integers(self.plan.dtype) else None

    def _added(self, v, there):
        """What is stored already, and v."""
        return self.e.b.fadd(v, there) if self.plan.scaled or not self._adds else self._adds(v, there)

    def _folded(self, v):
        """The accumulator with the lanes of one sum added up, in the first of them."""
        step = 1
        for k in reversed(self.plan.lane_loops):
            count = self.e.lanes if len(self.plan.lane_loops) == 1 else self.plan.counts[k]
            if self.loops[k].dim in self.reductions:
                v = self.e.fold(v, count, step, self._adds)
            step *= count
        return v

    def _lanes_out(self, used):
        """Offsets in `out` of the lanes that hold a result, None for the others."""
        first = [1 if self.loops[k].dim in self.reductions else u for k, u in zip(self.plan.lane_loops, used)]
        return self.plan.lane_offsets(self.plan.advance[OUT], first)

    def _kept(self, advance, lanes):
        """Lane offsets of another tensor where `lanes` has one."""
        whole = self.plan.lane_offsets(advance, self._whole if len(self.plan.lane_loops) > 1 else [self.e.lanes])
        return [o if kept is not None else None for o, kept in zip(whole, lanes)]

    # --- packing --------------------------------------------------------------------------------------------------
    def _pack(self, place):
        """Copy the part of b that is read from here on to the stack; the place from where it is read then."""
        target = At(None, 0)
        self._pack_loops(self.plan.pack, place.sizes, place.at[B], target)
        at = [target if t == B else o for t, o in enumerate(place.at)]
        return Place(place.sizes, at, place.begins, place.ends, place.counts)

    def _pack_loops(self, k, sizes, source, target):
        plan, e = self.plan, self.e
        if k == len(self.loops) - len(plan.lane_loops) or k == len(self.loops):
            used = tuple(sizes[self.loops[i].dim] for i in plan.lane_loops)
            return self._pack_lanes(used, source, target)
        loop = self.loops[k]
        if not plan.source[k]:
            return self._pack_loops(k + 1, sizes, source, target)
        full, rest = divmod(sizes[loop.dim], loop.step)

        def inside(i, size):
            self._pack_loops(k + 1, sizes | {loop.dim: size}, self._step(source, i, plan.source[k]),
                             self._step(target, i, plan.advance[B][k]))
            return []

        if full:
            e.loop(I64(full), [], lambda i: inside(i, loop.step))
        if rest:
            inside(full, rest)
        return None

    def _pack_lanes(self, used, source, target):
        plan, offsets = self.plan, [0]
        for k, u in zip(plan.lane_loops, used):
            if plan.source[k]:
                n = plan.counts[k] if len(used) > 1 else u  # whole vectors of several loops: zeros beyond the end
                offsets = [None if o is None or i >= u else o + i * plan.source[k] for o in offsets for i in range(n)]
        read = self._address(self.e.fn.args[B], source, 0)
        self.e.copy(read, offsets, self._pointer(B, target, 0))

    # --- addresses ----------------------------------------------------------------------------------------------
    def _moved(self, place, k, i, size):
        """The place after i steps of loop k, where blocks have `size`; i is an int or a run-time value."""
        at = [self._step(o, i, advance[k]) for o, advance in zip(place.at, self.plan.advance)]
        return Place(place.sizes | {self.loops[k].dim: size}, at, place.begins, place.ends, place.counts)

    def _step(self, at, i, advance):
        if isinstance(i, int):
            return At(at.value, at.constant + i * advance)
        if not advance:
            return at
        step = self.e.mul(i, advance)
        return At(step if at.value is None else self.e.b.add(at.value, step), at.constant)

    def _address(self, pointer, at, offset):
        return self.e.at(pointer if at.value is None else self.e.at(pointer, at.value), at.constant + offset)

    def _pointer(self, t, at, offset):
        return self._address(self.pointers[t], at, offset)

    def _load(self, t, at, offset, used):
        if not self.plan.lane_loops:
            return self.e.broadcast(self._pointer(t, at, offset))
        return self.e.gather(self._pointer(t, at, offset), self.plan.lane_offsets(self.plan.advance[t], used))


def _all(b, conditions):
    out = I1(1)
    for condition in conditions:
        out = b.and_(out, condition)
    return out
