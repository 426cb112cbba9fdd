"""An operand rearranged into the order in which a schedule reads it, so that its stream from memory is sequential."""
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

    def pack(self, array):
        """The packed copy, flat, of an array whose axes are the operand's dimensions, in the order of its strides."""
        counts = {d: [count for _, dim, count in self.levels if dim == d] or [1] for d in self.dims}
        padding = [(0, int(np.prod(counts[d])) - e) for d, e in zip(self.dims, self.extents)]
        blocks = np.pad(array, padding).reshape([c for d in self.dims for c in counts[d]])
        axes = [(d, level) for d in self.dims for level in range(len(counts[d]))]
        seen = dict.fromkeys(self.dims, 0)
        order = []
        for _, d, _ in self.levels:
            order.append(axes.index((d, seen[d])))
            seen[d] += 1
        rest = [k for k in range(len(axes)) if k not in order]
        return np.ascontiguousarray(blocks.transpose(order + rest)).ravel()
