"""Random contractions and random legal schedules of them."""
from hypothesis import assume
from hypothesis import strategies as st

from znn.loops import Loop, Schedule, conv_backward_data, conv_backward_weights, conv_forward, matmul


def convolutions():
    """Small convolutions, all three passes."""
    small = st.integers(1, 3)
    kernel = st.tuples(st.integers(1, 2), small, small)
    extent = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 9))
    dilation = st.tuples(st.integers(1, 2), small, small)
    conv = (st.integers(1, 2), small, st.integers(1, 5), kernel, extent, dilation)
    return st.one_of(st.builds(conv_forward, *conv, st.tuples(small, small, small)),
                     st.builds(conv_backward_data, *conv), st.builds(conv_backward_weights, *conv))


def contractions():
    """Small contractions of every kind."""
    return st.one_of(st.builds(matmul, st.integers(1, 7), st.integers(1, 19), st.integers(1, 7)), convolutions())


@st.composite
def schedules(draw, contraction):
    """A legal schedule: each dimension cut into nested blocks, all loops in any order, marks in their phases."""
    chains = {}
    for dim in contraction.dims:
        steps = [1]
        while len(steps) < 3 and draw(st.booleans()):
            steps.append(steps[-1] * draw(st.integers(2, 4)))
        chains[dim.name] = [Loop(dim.name, s) for s in reversed(steps)]
    loops = []
    while any(chains.values()):
        name = draw(st.sampled_from([d for d, chain in chains.items() if chain]))
        loops.append(chains[name].pop(0))
    cuts = sorted(draw(st.integers(0, len(loops))) for _ in range(2))
    vector = draw(st.booleans())
    marked = [Loop(x.dim, x.step, "parallel" if i < cuts[0] else "unroll" if i >= cuts[1] else "")
              for i, x in enumerate(loops)]
    if vector:
        assume(cuts[0] < len(loops))
        marked[-1] = Loop(marked[-1].dim, 1, "vector")
    return Schedule(tuple(marked)).check(contraction)
