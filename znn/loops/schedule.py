"""In which order a contraction is summed: a list of loops, printed as text, changed by pure moves.

A loop is a dimension with a step; the loops of one dimension nest from coarse to fine, each covering one step of the
one outside it, the innermost with step 1::

    y:1 parallel, x:48, co:8, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector

visits rows in parallel, in each row blocks of 48 voxels, for each block 8 channels at a time; the innermost run of
unrolled and vector loops is the register tile.  The lanes of a vector may come from several loops, one inside the
other, as in ``..., co:4, x:4, co:1 vector, x:1 vector``.  Every legal schedule computes the same sums.
"""
import math
import re
from dataclasses import dataclass

MARKS = ("", "parallel", "unroll", "vector")
MAX_LANES = 64  # of a vector over several loops
_PHASE = {"parallel": 0, "": 1, "unroll": 2, "vector": 3}
_LOOP = re.compile(r"(\w+):(\d+)(?:\s+(\w+))?$")


class IllegalSchedule(ValueError):
    """A schedule or a move that would not compute the contraction; says which loop and why."""


@dataclass(frozen=True)
class Loop:
    """Over `dim` in steps of `step`, marked "", "parallel", "unroll" or "vector"."""

    dim: str
    step: int = 1
    mark: str = ""

    def __str__(self):
        return f"{self.dim}:{self.step}" + (f" {self.mark}" if self.mark else "")


@dataclass(frozen=True)
class Schedule:
    """Loops from the outermost to the innermost."""

    loops: tuple

    def __str__(self):
        return ", ".join(map(str, self.loops))

    @classmethod
    def parse(cls, text):
        """The schedule that prints as `text`; loops are separated by commas or line ends.

        Raises
        ------
        IllegalSchedule
            If a part is not ``dimension:step [mark]``.
        """
        loops = []
        for part in filter(None, (p.strip() for p in re.split(r"[,\n]", text))):
            found = _LOOP.match(part)
            if not found or (found[3] or "") not in MARKS:
                raise IllegalSchedule(f"cannot read the loop {part!r}: expected 'dimension:step' and at most one of "
                                      f"{', '.join(MARKS[1:])}")
            loops.append(Loop(found[1], int(found[2]), found[3] or ""))
        return cls(tuple(loops))

    def ranges(self, contraction):
        """Extent that each loop covers: the step of the next loop of the same dimension outside it, or all."""
        inside, out = dict(contraction.extents), []
        for loop in self.loops:
            out.append(inside[loop.dim])
            inside[loop.dim] = loop.step
        return out

    def one_task_each(self, dim):
        """Whether the only parallel loop takes single steps of the named dimension."""
        return [(x.dim, x.step) for x in self.loops if x.mark == "parallel"] == [(dim, 1)]

    def check(self, contraction):
        """The schedule itself if it computes the contraction, else IllegalSchedule with the reason."""
        last = {}
        for i, loop in enumerate(self.loops):
            if loop.dim not in contraction.extents:
                raise IllegalSchedule(f"loop {i} ({loop}): {contraction.name} has no dimension {loop.dim!r}, only "
                                      f"{', '.join(contraction.extents)}")
            if loop.step < 1:
                raise IllegalSchedule(f"loop {i} ({loop}): the step must be at least 1")
            outer = last.get(loop.dim)
            if outer and (outer.step % loop.step or outer.step == loop.step):
                raise IllegalSchedule(f"loop {i} ({loop}): its step must be a proper divisor of {outer.step}, the step "
                                      f"of the {loop.dim} loop outside it")
            if i and _PHASE[loop.mark] < _PHASE[self.loops[i - 1].mark]:
                raise IllegalSchedule(f"loop {i} ({loop}): parallel loops come first, then plain, unrolled, and the "
                                      f"vector loop last; outside it is {self.loops[i - 1]}")
            if loop.mark == "vector" and loop.step != 1:
                raise IllegalSchedule(f"loop {i} ({loop}): a vector loop has step 1")
            last[loop.dim] = loop
        for dim in contraction.dims:
            if dim.extent > 1 and (dim.name not in last or last[dim.name].step != 1):
                raise IllegalSchedule(f"dimension {dim.name} is not visited voxel by voxel: it needs an innermost loop "
                                      f"{dim.name}:1")
        self._check_lanes(contraction)
        self._check_guards(contraction)
        return self

    def _check_lanes(self, contraction):
        ranges = [r for r, loop in zip(self.ranges(contraction), self.loops) if loop.mark == "vector"]
        if len(ranges) > 1 and math.prod(ranges) > MAX_LANES:
            raise IllegalSchedule(f"the vector loops cover {' x '.join(map(str, ranges))} lanes, at most {MAX_LANES} "
                                  "are possible: split their dimensions further out")

    def _check_guards(self, contraction):
        """A guarded sum is clipped at run time: its loop must know where it stands."""
        for guard in contraction.guards:
            summed = next(d for d, _ in guard.place.strides if d in contraction.reductions)
            at = [i for i, loop in enumerate(self.loops) if loop.dim == summed]
            if len(at) != 1 or self.loops[at[0]].mark:
                found = ", ".join(f"{self.loops[i]} (loop {i})" for i in at) or "none"
                raise IllegalSchedule(f"dimension {summed} is guarded: it needs one loop, not split and not marked; "
                                      f"found {found}")
            late = [loop for loop in self.loops[at[0]:] if loop.dim != summed and guard.place.stride(loop.dim)]
            if late:
                raise IllegalSchedule(f"loop {at[0]} ({self.loops[at[0]]}): {summed} is guarded by {late[0].dim}, "
                                      f"whose loop {late[0]} must stand outside it")

    # --- moves: each returns a legal schedule or raises IllegalSchedule ---------------------------------------
    def swap(self, contraction, i):
        """Exchange loops i and i + 1."""
        a, b = self._pair(i)
        if a.dim == b.dim:
            raise IllegalSchedule(f"swap {i}: {a} and {b} are loops of one dimension; the coarse one stays outside")
        return self._with(i, i + 2, b, a).check(contraction)

    def split(self, contraction, i, factor):
        """Put a loop of `factor` times its step around loop i."""
        loop, size = self._loop(i), self.ranges(contraction)[i]
        if factor < 2 or loop.step * factor >= size:
            raise IllegalSchedule(f"split {i}: a step of {loop.step * factor} around {loop}, which covers {size}; "
                                  f"expected a factor of at least 2 and a step below {size}")
        mark = "" if loop.mark == "vector" else loop.mark
        return self._with(i, i + 1, Loop(loop.dim, loop.step * factor, mark), loop).check(contraction)

    def join(self, contraction, i):
        """Take loop i away, whose range the next loop, of the same dimension, then covers."""
        a, b = self._pair(i)
        if a.dim != b.dim:
            raise IllegalSchedule(f"join {i}: {a} and {b} are loops of two dimensions")
        return self._with(i, i + 2, b).check(contraction)

    def mark(self, contraction, i, mark):
        """Mark loop i "parallel", "unroll", "vector" or "" (plain)."""
        if mark not in MARKS:
            raise IllegalSchedule(f"mark {i}: {mark!r} is unknown: choose one of {', '.join(map(repr, MARKS))}")
        loop = self._loop(i)
        return self._with(i, i + 1, Loop(loop.dim, loop.step, mark)).check(contraction)

    def _loop(self, i):
        if not 0 <= i < len(self.loops):
            raise IllegalSchedule(f"there is no loop {i}: the schedule has {len(self.loops)}")
        return self.loops[i]

    def _pair(self, i):
        if not 0 <= i < len(self.loops) - 1:
            raise IllegalSchedule(f"there are no loops {i} and {i + 1}: the schedule has {len(self.loops)}")
        return self.loops[i], self.loops[i + 1]

    def _with(self, start, stop, *loops):
        return Schedule(self.loops[:start] + loops + self.loops[stop:])
