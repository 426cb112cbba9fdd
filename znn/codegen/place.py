"""Where code of a kernel is being written, and the addresses that follow from it."""
from dataclasses import dataclass

from znn.codegen.emit import I1


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


class Addresses:
    """Places and pointers of a kernel.

    Parameters
    ----------
    plan : Plan
    e : Emitter
    pointers : list
        To each tensor, in the order of `znn.codegen.plan`.
    """

    def __init__(self, plan, e, pointers):
        self.plan, self.e, self.pointers = plan, e, pointers

    def moved(self, place, k, i, size):
        """The place after i steps of loop k, where blocks have `size`; i is an int or a run-time value."""
        at = [self.step(o, i, advance[k]) for o, advance in zip(place.at, self.plan.advance)]
        return Place(place.sizes | {self.plan.loops[k].dim: size}, at, place.begins, place.ends, place.counts)

    def step(self, at, i, advance):
        """The offset after i steps of `advance` elements."""
        if isinstance(i, int):
            return At(at.value, at.constant + i * advance)
        if not advance:
            return at
        step = self.e.mul(i, advance)
        return At(step if at.value is None else self.e.b.add(at.value, step), at.constant)

    def address(self, pointer, at, offset):
        """A pointer to what is so many elements beyond an offset."""
        return self.e.at(pointer if at.value is None else self.e.at(pointer, at.value), at.constant + offset)

    def pointer(self, t, at, offset):
        """The same into tensor t."""
        return self.address(self.pointers[t], at, offset)

    def load(self, t, at, offset, used):
        """A vector of tensor t, `used` lanes of each lane loop; without such a loop one element in all lanes."""
        if not self.plan.lane_loops:
            return self.e.broadcast(self.pointer(t, at, offset))
        return self.e.gather(self.pointer(t, at, offset), self.plan.lane_offsets(self.plan.advance[t], used))


def all_of(b, conditions):
    """Whether all of several conditions hold."""
    out = I1(1)
    for condition in conditions:
        out = b.and_(out, condition)
    return out
