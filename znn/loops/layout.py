"""An operand rearranged into the order in which a schedule reads it, so that its stream from memory is sequential."""
from functools import cached_property

import numpy as np


class Packing:
    """The packed layout of one operand under a schedule, or under the loops of it from `first` on.

    Each of these loops over one of the operand's dimensions becomes a dimension of the packed array, in the order of
    the loops; extents are padded to whole steps, with zeros.

    Attributes
    ----------
    advance : list of int
        For each loop of the schedule, elements that one step moves in the packed operand.
    size : int
        Elements of the packed operand.
    """

    def __init__(self, contraction, schedule, access, first=0):
        self.access, self.extents = access, contraction.extents
        self.loops = schedule.loops
        counts = [-(-r // loop.step) for r, loop in zip(schedule.ranges(contraction), self.loops)]
        self.advance, self.size = [0] * len(counts), 1
        self.levels = [(k, counts[k]) for k in range(first, len(counts)) if access.stride(self.loops[k].dim)]
        for k, count in reversed(self.levels):
            self.advance[k] = self.size
            self.size *= count

    @cached_property
    def source(self):
        """For each packed element its element in the array, -1 where there is none: zero goes there; int64."""
        shape = [count for _, count in self.levels] or [1]
        index, inside = {}, np.ones(shape, bool)
        for axis, (k, count) in enumerate(self.levels):
            steps = np.arange(count) * self.loops[k].step
            along = steps.reshape([-1 if a == axis else 1 for a in range(len(shape))])
            index[self.loops[k].dim] = index.get(self.loops[k].dim, 0) + along
        source = np.full(shape, self.access.start)
        for dim, i in index.items():
            source = source + i * self.access.stride(dim)
            inside &= i < self.extents[dim]
        return np.where(inside, source, -1).ravel()

    def pack(self, array):
        """The packed copy, flat, of a contiguous array that the operand's addresses belong to."""
        return np.append(array.reshape(-1), array.dtype.type(0))[self.source]
