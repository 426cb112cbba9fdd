"""The meaning of a schedule, one multiplication at a time: the oracle that generated code is tested against."""


def visit(contraction, schedule):
    """Yield the index (a dict by dimension name) of every point that counts, in the order of the schedule."""
    schedule.check(contraction)

    def walk(k, index, inside):
        if k == len(schedule.loops):
            if contraction.inside(index):
                yield index
            return
        loop = schedule.loops[k]
        for start in range(0, inside[loop.dim], loop.step):
            yield from walk(k + 1, index | {loop.dim: index[loop.dim] + start},
                            inside | {loop.dim: min(loop.step, inside[loop.dim] - start)})

    yield from walk(0, dict.fromkeys(contraction.extents, 0), dict(contraction.extents))


def interpret(contraction, schedule, out, a, b):
    """Add the contraction of the flat arrays a and b to the flat array `out`, in the order of the schedule."""
    for index in visit(contraction, schedule):
        out[contraction.out.address(index)] += a[contraction.a.address(index)] * b[contraction.b.address(index)]
    return out
