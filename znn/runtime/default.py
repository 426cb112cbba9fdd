"""Schedules from a rule: good ones for any convolution, without measuring anything.

Forward and backward-data keep a tile of channels by vectors of voxels in registers and sum over channels and taps;
backward-weights keeps a tile of output channels by taps and sums over voxels::

    n:1 parallel, z:1 parallel, y:1 parallel, x:48, co:8, ci:1, kz:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector
    z:1 parallel, y:45 parallel, co:6 parallel, y:16, ci:1, kz:1, ky:1, y:1, x:16, co:1 unroll, kx:1 unroll, x:1 vector
"""
import math

from znn.loops.schedule import Loop, Schedule

L1_BYTES = 48 << 10      # a first-level cache
TASKS = 64              # pieces of a weight gradient: enough for a large machine
STRIP_BYTES = 128 << 10  # rows that a weight gradient goes over again for each input channel stay in the second cache


def spatial(contraction, lanes, registers, itemsize):
    """Schedule for `conv_forward` and `conv_backward_data`."""
    extents = contraction.extents
    forward = "co" not in contraction.reductions
    out, inner = ("co", "ci") if forward else ("ci", "co")
    rows = extents[inner] * extents["kz"] * extents["ky"]
    halo = abs(contraction.a.stride("kx")) * (extents["kx"] - 1)
    channels, vectors = tile(extents[out], extents["x"], rows, halo, lanes, registers, itemsize)
    taps = [Loop("kz"), Loop("ky")]
    summed = [Loop(inner), *taps] if forward else [*taps, Loop(inner)]
    loops = [Loop("n", 1, "parallel"), Loop("z", 1, "parallel"), Loop("y", 1, "parallel"),
             Loop("x", vectors * lanes), Loop(out, channels), *summed,
             Loop("kx", 1, "unroll"), Loop(out, 1, "unroll"), Loop("x", 1, "vector")]
    return _tidy(loops, extents)


def weights(contraction, lanes, registers, itemsize):
    """Schedule for `conv_backward_weights`."""
    extents = contraction.extents
    channels, taps = _weight_tile(extents, registers)
    blocks = -(-extents["co"] // channels) * extents["n"] * extents["z"]
    part = -(-extents["y"] // max(1, min(extents["y"], TASKS // blocks)))
    strip = max(1, min(part, STRIP_BYTES // (channels * extents["x"] * itemsize)))
    part = -(-part // strip) * strip
    loops = [Loop("n", 1, "parallel"), Loop("z", 1, "parallel"), Loop("y", part, "parallel"),
             Loop("co", channels, "parallel"), Loop("y", strip), *(Loop(d, step) for d, step in taps.items()),
             Loop("y"), Loop("x", lanes),
             Loop("co", 1, "unroll"), *(Loop(d, 1, "unroll") for d in taps), Loop("x", 1, "vector")]
    return _tidy(loops, extents)


def tile(channels, width, rows, halo, lanes, registers, itemsize):
    """(channels, vectors) of the register tile with the least estimated time for a row of `width` voxels.

    A multiplication costs one slot for each accumulator; each step also broadcasts the weights and loads the vectors.
    The `rows` input rows of a tile, `halo` voxels longer than the tile, should stay in the first-level cache while
    the blocks of channels go over them.
    """
    whole = -(-width // lanes)

    def cost(shape):
        nc, nx = shape
        parts = [(c, v, many * times) for c, many in ((nc, channels // nc), (channels % nc, 1))
                 for v, times in ((nx, whole // nx), (whole % nx, 1)) if c and v and many and times]
        excess = rows * (nx * lanes + halo) * itemsize / L1_BYTES - 1.5
        slots = sum(count * (max(c * v, (c + 2 * v) / 2) + 0.3 * c + 0.2 * v) for c, v, count in parts)
        return slots * (1 + 0.2 * max(0.0, excess)), -nx

    return min(((nc, nx) for nx in range(1, min(6, whole) + 1) for nc in range(1, channels + 1)
                if nc * nx + nx + 1 <= registers), key=cost)


def _weight_tile(extents, registers):
    """Output channels and, for each of (ci, kz, ky, kx), how many of them one tile holds.

    Taps are taken whole, from kx outwards, as long as at least four output channels still fit beside them.
    """
    taps = dict.fromkeys(("ci", "kz", "ky", "kx"), 1)
    room = (registers - 1) // 5
    for d in ("kx", "ky", "kz", "ci"):
        held = math.prod(taps.values())
        if d != "ci" and held * extents[d] <= room:
            taps[d] = extents[d]
        else:
            taps[d] = max((s for s in range(1, max(2, room // held + 1)) if s <= extents[d]), default=1)
            break
    held = math.prod(taps.values())
    return max(1, min(extents["co"], (registers - 1 - held) // held)), taps


def _tidy(loops, extents):
    """The schedule without the loops that make a single step."""
    inside, kept = dict(extents), []
    for loop in loops:
        if loop.step < inside[loop.dim]:
            kept.append(loop)
            inside[loop.dim] = loop.step
    return Schedule(tuple(kept))
