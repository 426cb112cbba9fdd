"""What is known about a kernel before a line of it is written: loops, register tile, tasks, advances of tensors."""
import math
from dataclasses import dataclass

from znn.codegen.group import Group, sums_integers
from znn.loops.layout import Packing
from znn.loops.schedule import IllegalSchedule, Loop, Schedule

MAX_CHUNKS = 8            # vectors of a reduction that one tile unrolls
MAX_BLOCK = 512 << 10     # bytes that a kernel packs for itself, on its stack

AHEAD = 2                 # tasks: of rows one after the other, some of the next one's are read now
MAX_ASKED = 4             # lines at a time: what a tile reads here and there is left to the processor
LINE = 64                 # bytes

OUT, A, B, BIAS = range(4)  # the tensors, in the order of the kernel's arguments; guards follow them


@dataclass(frozen=True)
class Epilogue:
    """What happens to a finished sum: add to what `out` holds, add a bias, apply an activation.

    `activation` is None, "relu", or (a, b) for a tanh(b s).  `stores` says in what groups the result is stored; None:
    in numbers of the type that it is summed in.  Sums of integers become float32 first, multiplied by a factor of
    their channel where there is a bias; integers that are stored have `zero` added to them, which then stands for 0.
    With `mixes` that many sums over the channels of the result are what is stored, a convolution of one voxel; only
    `znn.codegen.matrix` does it.

    Raises
    ------
    ValueError
        If it is to add to what is stored in groups, which has lost the precision of a sum, or mixes both.
    """

    accumulate: bool = False
    bias: bool = False
    activation: str | tuple | None = None
    stores: Group | None = None
    zero: int = 0
    mixes: int = 0

    def __post_init__(self):
        if self.mixes and (self.stores or self.accumulate):
            raise ValueError("channels that are mixed are stored as they are summed, and added to nothing")
        if self.stores and self.accumulate:
            raise ValueError(f"a sum that is stored as {self.stores.name} cannot be added to: store it in the type "
                             "that it is summed in")
        if self.zero and not (self.stores and self.stores.integers):
            raise ValueError(f"expected zero to be 0 where no integers are stored, found {self.zero}: leave it away")

    def __str__(self):
        """How what was measured names it: without what is not used."""
        fields = {"accumulate": self.accumulate, "bias": self.bias, "activation": self.activation}
        fields |= {"stores": self.stores.name, "zero": self.zero} if self.stores else {}
        fields |= {"mixes": self.mixes} if self.mixes else {}
        return f"Epilogue({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


PLAIN = Epilogue()


class Plan:
    """`contraction` under `schedule` on `target`, laid out.

    Parameters
    ----------
    contraction : Contraction
    schedule : Schedule
        Legal for the contraction.
    target : Target
    dtype : numpy.dtype or Group
        Of the elements of a and b.
    epilogue : Epilogue
    packed : {None, "before", "inside"}
        Whether operand b comes packed, or the kernel packs the part of it that the loops from `pack` on read, on its
        stack; they begin at the first plain loop that b does not depend on.  Without one b is read where it is.

    Attributes
    ----------
    loops, counts : sequences
        The loops from the outermost to the innermost, and how many steps each takes (in a full block).
    n_parallel, pack, scope, tile : int
        Index of the first loop that is not parallel, of the first one inside the packing, of the first one inside which
        the sums stay in registers, and of the first one of the register tile.
    lanes : int
        Lanes of a vector; `lane_loops` are the loops they come from.
    advance : list of list of int
        For each of out, a, b, bias and the guards: elements that one step of each loop moves.
    starts : list of int
    packing : Packing or None
        The layout of packed b.
    ahead, asked : int
        The row of `advance` and `starts` that runs through what a later task reads of a, `asked` lines at every step of
        the innermost loop of a sum.
    tasks : int
        How many tasks the parallel loops make.
    scaled : bool
        Whether sums are integers that become float32 before they are stored.
    factors : int
        Where in the argument `bias` their factors begin, after as many biases.
    copies : int
        Private copies of `out` that parallel reductions write, one after the other; the caller adds them up.

    Raises
    ------
    IllegalSchedule
        If the schedule is not legal, splits a sum in parallel that has an epilogue to follow, cuts a sum whose result
        is stored in groups, or one of integers that is stored as float32, or asks a task to pack more than its stack
        holds.
    """

    def __init__(self, contraction, schedule, target, dtype, epilogue=PLAIN, packed=None):
        schedule.check(contraction)
        self.c, self.epilogue, self.packed, self.dtype = contraction, epilogue, packed, dtype
        self.scaled = sums_integers(dtype) and epilogue != PLAIN
        bias = contraction.bias
        self.factors = bias and 1 + sum(s * (contraction.extents[d] - 1) for d, s in bias.strides)
        self._choose_lanes(schedule, target.lanes(dtype), target.registers)
        self.loops, ranges = self.schedule.loops, self.schedule.ranges(contraction)
        self.counts = [-(-r // loop.step) for r, loop in zip(ranges, self.loops)]
        self.n_parallel = sum(loop.mark == "parallel" for loop in self.loops)
        self.tasks = math.prod(self.counts[:self.n_parallel])
        self.tile = self._tile_start(ranges, target)
        self.scope = self.tile
        while self.scope > self.n_parallel and self.loops[self.scope - 1].dim in contraction.reductions:
            self.scope -= 1
        self.pack = next((k for k in range(self.n_parallel, self.scope)
                          if not contraction.b.stride(self.loops[k].dim)), None)
        if packed == "inside" and self.pack is None:  # no part of b is read twice
            self.packed = None
        self._place_tensors()
        self._place_copies()
        self._look_ahead()

    def _choose_lanes(self, schedule, native, registers):
        """Lanes from the vector loops; a single one that is longer than the registers hold is strip-mined."""
        self.lane_loops = [k for k, loop in enumerate(schedule.loops) if loop.mark == "vector"]
        ranges = schedule.ranges(self.c)
        self.lanes = {0: 1, 1: native}.get(len(self.lane_loops)) or math.prod(ranges[k] for k in self.lane_loops)
        if len(self.lane_loops) == 1:
            loop = schedule.loops[-1]
            most = native * (MAX_CHUNKS if loop.dim in self.c.reductions else (registers - 2) // 2)
            if ranges[-1] > most:
                self.lane_loops = [len(schedule.loops)]
                schedule = Schedule((*schedule.loops[:-1], Loop(loop.dim, most, ""), loop))
        self.schedule = schedule

    def _tile_start(self, ranges, target):
        """Index of the first loop of the longest innermost run of unrolled loops whose sums fit the registers."""
        wide = -(-self.lanes // target.lanes(self.dtype))  # registers that a vector takes
        start = len(self.loops) - len(self.lane_loops)
        sums = loads = wide
        if len(self.lane_loops) == 1:
            loads = -(-ranges[-1] // self.lanes)
            sums = 1 if self.loops[-1].dim in self.c.reductions else loads
        for k in range(start - 1, -1, -1):
            if self.loops[k].mark != "unroll":
                break
            if self.loops[k].dim not in self.c.reductions:
                sums *= self.counts[k]
            if sums + loads + 1 > target.registers and start < len(self.loops):
                break
            start = k
        return start

    def _place_tensors(self):
        tensors = [self.c.out, self.c.a, self.c.b, self.c.bias, *(g.place for g in self.c.guards)]
        self.advance = [[loop.step * t.stride(loop.dim) if t else 0 for loop in self.loops] for t in tensors]
        self.starts = [t.start if t else 0 for t in tensors]
        self.source = self.advance[B]  # of b where it is not packed
        first = self.pack if self.packed == "inside" else 0
        self.packing = Packing(self.c, self.schedule, self.c.b, first) if self.packed else None
        if self.packed:
            steps = zip(self.packing.advance, self.source)
            self.advance[B] = [p if k >= first else s for k, (p, s) in enumerate(steps)]
        if self.packed == "before":
            self.starts[B] = 0
        if self.packed == "inside" and self.packing.size * self.dtype.itemsize > MAX_BLOCK:
            raise IllegalSchedule(f"the kernel would pack {self.packing.size * self.dtype.itemsize} bytes of "
                                  f"{self.c.b.name} at once, at most {MAX_BLOCK} are possible: split its dimensions "
                                  f"before loop {self.pack}")

    def _place_copies(self):
        """Parallel loops over a sum move to the next private copy of `out`."""
        self.copies = 1
        size = 1 + self.c.out.start + sum(s * (self.c.extents[d] - 1) for d, s in self.c.out.strides)
        for k in reversed(range(self.n_parallel)):
            if self.loops[k].dim in self.c.reductions:
                self.advance[OUT][k] = self.copies * size
                self.copies *= self.counts[k]
        if self.copies > 1 and self.epilogue != PLAIN:
            raise IllegalSchedule("a sum that is split over parallel tasks has no place for bias, activation or "
                                  "accumulation: mark an output dimension parallel instead")
        cut = [str(self.loops[k]) for k in range(self.scope) if self.loops[k].dim in self.c.reductions
               and self.counts[k] > 1]
        if cut and (self.epilogue.stores or self.scaled):
            stored = self.epilogue.stores.name if self.epilogue.stores else "float32"
            raise IllegalSchedule(f"loop {cut[0]} cuts a sum that is stored as {stored}, where "
                                  "parts of it would lose their precision: put all loops of output dimensions that are "
                                  "not unrolled outside of it")

    def _look_ahead(self):
        """Where to ask for what task number t + AHEAD reads of a, while task t computes.

        A task reads a row of every channel: too short for the processor to foresee the next.  What a register tile
        reads in a step is asked for in shares, one for each step of the loop that reads it again for other outputs.
        """
        self.ahead = None
        task, along = self.n_parallel - 1, self.advance[A]
        if self.scope == self.tile or task < 0 or not along[task]:
            return
        elements = 1 + sum((self.counts[k] - 1) * abs(along[k]) for k in range(self.tile, len(self.loops))
                           if self.loops[k].dim not in self.c.reductions)
        line = LINE // self.dtype.itemsize
        lines = -(-elements // line)
        again = [k for k in range(self.n_parallel, self.scope) if self.counts[k] > 1 and not along[k]
                 and self.loops[k].dim not in self.c.reductions][-1:]
        self.asked = -(-lines // math.prod(self.counts[k] for k in again))
        if self.asked <= MAX_ASKED:
            self.ahead = len(self.advance)
            self.advance.append([self.asked * line if k in again else along[k] for k in range(len(self.loops))])
            self.starts.append(self.starts[A] + AHEAD * along[task])

    def lane_offsets(self, advance, used):
        """Offset of every lane for a tensor's advances, None for the lanes beyond those `used` of each lane loop."""
        if not self.lane_loops:
            return [0]
        if len(self.lane_loops) == 1:
            return [i * advance[-1] if i < used[0] else None for i in range(self.lanes)]
        ranges = [self.counts[k] for k in self.lane_loops]
        offsets = [0]
        for k, n, u in zip(self.lane_loops, ranges, used):
            offsets = [None if o is None or i >= u else o + i * advance[k] for o in offsets for i in range(n)]
        return offsets
