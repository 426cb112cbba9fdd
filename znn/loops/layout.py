"""An operand rearranged into the order in which a schedule reads it, so that its stream from memory is sequential."""
import math

import numpy as np


class Packing:
    """The packed layout of one operand under a schedule.

    Each loop over one of the operand's dimensions becomes a dimension of the packed array, in the order of the loops;
    extents are padded to whole steps.

    Attributes
    ----------
    advance : list of int
        For each loop of the schedule, elements that one step moves in the packed operand.
    size : int
        Elements of the packed operand.
    """

    def __init__(self, contraction, schedule, access):
        self.dims = [d for d, _ in access.strides]
        self.extents = [contraction.extents[d] for d in self.dims]
        ranges = schedule.ranges(contraction)
        self.levels = [(i, loop.dim, -(-r // loop.step))
                       for i, (loop, r) in enumerate(zip(schedule.loops, ranges)) if loop.dim in self.dims]
        self.advance, self.size = [0] * len(schedule.loops), 1
        for i, _, count in reversed(self.levels):
            self.advance[i] = self.size
            self.size *= count
        self._plan()

    def pack(self, array):
        """The packed copy, flat, of an array whose axes are the operand's dimensions, in the order of its strides."""
        if any(after for _, after in self._padding):
            array = np.pad(array, self._padding)
        return np.ascontiguousarray(array.reshape(self._blocks).transpose(self._order)).ravel()

    def _plan(self):
        """How `pack` goes about it: padding by axis, extents of the blocks, and the order of their axes."""
        counts = {d: [count for _, dim, count in self.levels if dim == d] or [1] for d in self.dims}
        self._padding = [(0, math.prod(counts[d]) - e) for d, e in zip(self.dims, self.extents)]
        self._blocks = [c for d in self.dims for c in counts[d]]
        axes = [(d, level) for d in self.dims for level in range(len(counts[d]))]
        seen, order = dict.fromkeys(self.dims, 0), []
        for _, d, _ in self.levels:
            order.append(axes.index((d, seen[d])))
            seen[d] += 1
        self._order = order + [k for k in range(len(axes)) if k not in order]
