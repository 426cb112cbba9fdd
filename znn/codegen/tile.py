"""The register tile of a kernel: what is unrolled, and what becomes of its sums.

The innermost loops of a schedule are written out, vector by vector.  Each vector of the output has an accumulator, a
register that is carried through the loops of the sum; what the others read is loaded once a step and used as often as
the tile can.
"""
from functools import cached_property, partial

from znn.codegen import group, integers
from znn.codegen.place import all_of
from znn.codegen.plan import BIAS, OUT, A, B


class Tile:
    """The tile of a plan.

    Parameters
    ----------
    plan : Plan
    e : Emitter
    addresses : place.Addresses
    """

    def __init__(self, plan, e, addresses):
        self.plan, self.e, self._addresses = plan, e, addresses

    def _unrolled(self, sizes, only_outputs=False):
        """Yield (element offset in each tensor, lanes in use of each lane loop, step of the sum) for every vector."""
        e, advance, loops = self.e, self.plan.advance, self.plan.loops

        def walk(k, sizes, offsets, step):
            lane_loops = self.plan.lane_loops
            if k == len(loops) - len(lane_loops):
                if len(lane_loops) != 1:
                    yield offsets, tuple(sizes[loops[i].dim] for i in lane_loops), step
                    return
                size, summed = sizes[loops[k].dim], loops[k].dim in self.plan.c.reductions
                for x in range(0, 1 if only_outputs and summed else size, e.lanes):
                    if not summed and size >= e.lanes:  # the last vector ends with the row: a mask costs more than
                        x = min(x, size - e.lanes)      # to compute some lanes again
                    yield [o + x * a[k] for o, a in zip(offsets, advance)], (min(e.lanes, size - x),), step
                return
            loop = loops[k]
            summed = loop.dim in self.plan.c.reductions
            if only_outputs and summed:
                yield from walk(k + 1, sizes, offsets, step)
                return
            for i, x in enumerate(range(0, sizes[loop.dim], loop.step)):
                inner = sizes | {loop.dim: min(loop.step, sizes[loop.dim] - x)}
                yield from walk(k + 1, inner, [o + i * a[k] for o, a in zip(offsets, advance)],
                                (*step, i) if summed else step)

        yield from walk(self.plan.tile, sizes, [0] * len(advance), ())

    def accumulators(self, sizes):
        """Offset in `out` of each accumulator -> (its number, its offset in bias, lanes in use)."""
        places = {}
        for offsets, used, _ in self._unrolled(sizes, only_outputs=True):
            places[offsets[OUT]] = len(places), offsets[BIAS], used
        return places

    def add(self, place, acc, places):
        """The accumulators after the products of one tile."""
        acc, loaded, seen, last = list(acc), {}, set(), ()

        def operand(t, offset, used):
            key = t, offset, used
            if key not in loaded:
                full = t == B and self.plan.packing  # what is packed has zeros beyond its end
                lanes = self._whole if full and len(used) > 1 else used
                loaded[key] = self._addresses.load(t, place.at[t], offset, lanes)
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
        """Extent of each lane loop."""
        return tuple(self.plan.counts[k] for k in self.plan.lane_loops)

    def finish(self, acc, places, place):
        """Add up lanes, add what is there already, epilogue, store."""
        e, b, epilogue = self.e, self.e.b, self.plan.epilogue
        targets = [(o, bias, self._lanes_out(used)) for o, (_, bias, used) in places.items()]
        values = [self._folded(v) for v in acc]
        pointer = lambda t, o: self._addresses.pointer(t, place.at[t], o)  # noqa: E731
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
            values = e.when(b.not_(all_of(b, place.begins)), values, existing)
        if epilogue.bias or epilogue.activation or epilogue.zero:
            values = e.when(all_of(b, place.ends), values, finished) if place.ends else finished(*values)
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
            if self.plan.loops[k].dim in self.plan.c.reductions:
                v = self.e.fold(v, count, step, self._adds)
            step *= count
        return v

    def _lanes_out(self, used):
        """Offsets in `out` of the lanes that hold a result, None for the others."""
        reductions, loops = self.plan.c.reductions, self.plan.loops
        first = [1 if loops[k].dim in reductions else u for k, u in zip(self.plan.lane_loops, used)]
        return self.plan.lane_offsets(self.plan.advance[OUT], first)

    def _kept(self, advance, lanes):
        """Lane offsets of another tensor where `lanes` has one."""
        whole = self.plan.lane_offsets(advance, self._whole if len(self.plan.lane_loops) > 1 else [self.e.lanes])
        return [o if kept is not None else None for o, kept in zip(whole, lanes)]
