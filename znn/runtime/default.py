"""Schedules from a rule: good ones for any convolution, without measuring anything.

Forward and backward-data keep a tile of channels by vectors of voxels in registers and sum over channels and taps; the
columns that do not fill a vector are better off with channels in the lanes.  Backward-weights keeps a tile of output
channels by taps; its vectors hold a few channels of a few neighbouring voxels, which fits both without a rest::

    z:1 parallel, y:1 parallel, x:48, co:8, ci:1, kz:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector
    z:1 parallel, y:1 parallel, ci:1, kz:1, ky:1, kx:1 unroll, x:1 unroll, co:1 vector
    z:1 parallel, y:45 parallel, co:12 parallel, y:9, ci:3, ky:1, y:1, x:4, kx:1 unroll, ci:1 unroll, co:4 unroll,
        co:1 vector, x:1 vector
"""
import functools
import itertools
import math
from collections import defaultdict

from znn.loops.schedule import Loop, Schedule

TASKS = 64               # pieces of work: enough for a large machine
COPY_BYTES = 4 << 20     # of private weight gradients that are added up at the end
BLOCK_BYTES = 256 << 10  # of a gradient that is packed at once, to stay in the second cache
PIECES = "p", "n", "z", "y"  # each row of each volume, or for each point, is work of its own
WORTH = 0.08             # part of the time that a kernel more must save


def spatial(contraction, lanes, registers):
    """Schedule for `conv_forward` and `conv_backward_data`, voxels in the lanes."""
    extents = _extents(contraction)
    out, inner = _channels(contraction)
    channels, vectors = tile(extents[out], -(-extents["x"] // lanes), registers, extents["c"])
    taps = [Loop("kz"), Loop("ky")]
    summed = [Loop(inner), *taps] if extents["kz"] == 1 else [*taps, Loop(inner)]  # one plane at a time
    loops = [*(Loop(d, 1, "parallel") for d in PIECES), Loop("x", vectors * lanes), Loop(out, channels), *summed,
             Loop("kx", 1, "unroll"), Loop(out, 1, "unroll"), Loop("c", 1, "unroll"), Loop("x", 1, "vector")]
    return _tidy(loops, extents)


def narrow(contraction, lanes, registers):
    """Schedule for `conv_forward` and `conv_backward_data` of few columns, channels in the lanes."""
    extents = _extents(contraction)
    out, inner = _channels(contraction)
    lanes //= extents["c"]
    whole = -(-extents[out] // lanes)
    vectors = max(1, min(whole, (registers - 1) // (extents["x"] + 1)))
    vectors = -(-whole // -(-whole // vectors))  # blocks of one size
    groups = [Loop(out, lanes, "unroll")] if extents["c"] > 1 else []  # a vector of two loops holds no more than lanes
    loops = [*(Loop(d, 1, "parallel") for d in PIECES), Loop(out, vectors * lanes), Loop("kz"), Loop("ky"), Loop(inner),
             Loop("kx", 1, "unroll"), Loop("x", 1, "unroll"), *groups, Loop(out, 1, "vector"), Loop("c", 1, "vector")]
    return _tidy(loops, extents)


def columns(width, channels, lanes):
    """Parts (first, end, rule) of a row: what fills vectors of voxels, and the rest where `narrow` does it sooner."""
    rest = width % lanes
    spared = channels - rest * -(-channels // lanes)
    if rest and spared > WORTH * channels * -(-width // lanes):
        return [(0, width - rest, "spatial")] * (width > rest) + [(width - rest, width, "narrow")]
    return [(0, width, "spatial")]


def weights(contraction, lanes, registers, itemsize, tasks=TASKS):
    """Schedule for `conv_backward_weights`, in about so many tasks, and for `points_weights`."""
    extents = _extents(contraction)
    voxels = max(1, lanes // 4)
    each = lanes // voxels  # channels of a vector
    groups, inputs, rows = _weight_tile(extents, each, registers)
    channels = groups * each
    width = -(-extents["x"] // voxels) * voxels
    blocks = -(-extents["co"] // channels)
    copies = max(1, COPY_BYTES // (itemsize * math.prod(extents[d] for d in ("co", "ci", "kz", "ky", "kx"))))
    slices = "parallel" if extents["n"] * extents["z"] <= copies else ""
    done = extents["n"] * extents["z"] if slices else 1
    parts = max(1, min(tasks // (blocks * done), copies // done, extents["y"]))
    strip = max(1, min(-(-extents["y"] // parts), BLOCK_BYTES // (channels * width * itemsize)))
    part = -(-extents["y"] // (parts * strip)) * strip
    cut = [Loop("y", part, "parallel"), Loop("co", channels, "parallel")] if parts > 1 else [
        Loop("co", channels, "parallel")]
    loops = [Loop("n", 1, slices), Loop("z", 1, slices), *cut]
    loops = [loop for loop in loops if loop.mark] + [loop for loop in loops if not loop.mark]
    loops += [Loop("y", strip), Loop("ci", inputs), Loop("kz"), Loop("ky", rows), Loop("y"), Loop("x", voxels),
              Loop("ky", 1, "unroll"), Loop("kx", 1, "unroll"), Loop("ci", 1, "unroll"), Loop("co", each, "unroll"),
              Loop("co", 1, "vector"), Loop("x", 1, "vector")]
    return _tidy(loops, extents)


@functools.cache
def weights_rule(itemsize, tasks=TASKS):
    """`weights` for elements of a size, as a function of contraction, lanes and registers alone."""
    return functools.partial(weights, itemsize=itemsize, tasks=tasks)


RULES = {"spatial": spatial, "narrow": narrow}


def tile(channels, vectors, registers, together=1):
    """(channels, vectors) of the register tile for a row of so many vectors, with the least estimated time.

    Where so many channels are stored `together`, they count as one but take the registers and the time of all.

    A row is cut into equal tiles as wide as they come: a wide one loads its vectors for few channels at a time, which
    leaves the first-level cache to the rows.  A step takes the cycles of its multiplications or of its loads (unaligned
    vectors count twice), two of either in each, and no fewer than a multiplication waits for its own result.
    """
    widest = 6 if registers >= 32 else 3
    held = -(-vectors // -(-vectors // widest))

    def cost(many):
        blocks, rest = divmod(channels, many)
        cycles = lambda c: max(together * c * held, together * c + 2 * held, 8) / 2 + 0.5  # noqa: E731
        return blocks * cycles(many) + (cycles(rest) + 1 if rest else 0)

    return min((n for n in range(1, channels + 1) if (together * n + 1) * held + 1 <= registers), key=cost,
               default=1), held


def _extents(contraction):
    """Extent by name; 1 for what the contraction does not have."""
    return defaultdict(lambda: 1, contraction.extents)


def _channels(contraction):
    """The channels that a spatial contraction makes, and those that it sums over."""
    return ("co", "ci") if "co" not in contraction.reductions else ("ci", "co")


def _weight_tile(extents, each, registers):
    """(vectors of output channels, input channels, taps along ky) of the tile with the least estimated time.

    All taps of kx are in it.  A step multiplies into every accumulator, loads a vector for each group of output
    channels and one for each input row and tap; with few accumulators it waits for its own results.
    """
    whole = -(-extents["co"] // each)

    def cost(shape):
        groups, inputs, rows = shape
        total = 0
        for g, many in ((groups, whole // groups), (whole % groups, 1)):
            for c, times in ((inputs, extents["ci"] // inputs), (extents["ci"] % inputs, 1)):
                for r, again in ((rows, extents["ky"] // rows), (extents["ky"] % rows, 1)):
                    sums = g * c * r * extents["kx"]
                    total += many * times * again * (bool(sums) and max(sums, 8, (g + 1.5 * sums / g if g else 0)) + 1)
        return total

    shapes = itertools.product(range(1, whole + 1), range(1, extents["ci"] + 1), {1, extents["ky"]})
    fits = [s for s in shapes if s[0] * (s[1] * s[2] * extents["kx"] + 1) + 1 <= registers]
    return min(fits, key=lambda s: (cost(s), s[2]), default=(1, 1, 1))


def _tidy(loops, extents):
    """The schedule without the loops that make a single step."""
    inside, kept = extents.copy(), []
    for loop in loops:
        if loop.step < inside[loop.dim]:
            kept.append(loop)
            inside[loop.dim] = loop.step
    return Schedule(tuple(kept))
