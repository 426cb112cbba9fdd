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
from dataclasses import replace
from functools import cached_property

from znn.codegen import group
from znn.codegen.emit import I1, I64, Emitter
from znn.codegen.place import Addresses, At, Place, all_of
from znn.codegen.plan import BIAS, LINE, OUT, PLAIN, A, B, Plan
from znn.codegen.tile import Tile


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
        self.addresses = Addresses(self.plan, self.e, self.pointers)
        self.tile = Tile(self.plan, self.e, self.addresses)
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

        def inside(i, size):
            self._parallel(k + 1, self.addresses.moved(place, k, i, size), digits)
            return []

        if full:
            self.e.when(self.e.b.icmp_signed("<", digits[k], I64(full)), [],
                        lambda: inside(digits[k], self.loops[k].step))
        if rest:
            self.e.when(self.e.b.icmp_signed("==", digits[k], I64(full)), [], lambda: inside(full, rest))
        steps = full + (rest > 0)
        if self.loops[k].dim in self.reductions and steps < self.plan.counts[k]:
            # a short block has no such steps, but there is a private copy of the output for them: it becomes zero
            copy = self.addresses.step(place.at[OUT], digits[k], self.plan.advance[OUT][k])
            there = min(self.loops[k].step, place.sizes[self.loops[k].dim])
            empty = self.addresses.moved(place, k, 0, there)  # what is packed before the sum must be there
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
            moved = self.addresses.moved(place, k, i, size)
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
        places = self.tile.accumulators(place.sizes)
        acc = [self.e.zero()] * len(places)
        if self.plan.ahead is not None and self.plan.advance[OUT][-1] == 1:  # time enough until they are written
            for o in places:
                self.e.prefetch(self.addresses.pointer(OUT, place.at[OUT], o), level=1, write=True)
        if place.counts:
            acc = self.e.when(all_of(self.e.b, place.counts), acc,
                              lambda *acc: self._reduce(self.plan.scope, place, list(acc), places))
        else:
            acc = self._reduce(self.plan.scope, place, acc, places)
        self.tile.finish(acc, places, place)

    def _reduce(self, k, place, acc, places):
        """Reduction loops with the accumulators carried in registers, down to the tile."""
        if k == self.plan.tile:
            return self.tile.add(place, acc, places)
        loop = self.loops[k]
        full, rest = divmod(place.sizes[loop.dim], loop.step)

        def inside(i, size, acc):
            moved = self.addresses.moved(place, k, i, size)
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
            first = self.addresses.address(self.pointers[A], place.at[self.plan.ahead], 0)
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
            self._pack_loops(k + 1, sizes | {loop.dim: size}, self.addresses.step(source, i, plan.source[k]),
                             self.addresses.step(target, i, plan.advance[B][k]))
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
        read = self.addresses.address(self.e.fn.args[B], source, 0)
        self.e.copy(read, offsets, self.addresses.pointer(B, target, 0))
