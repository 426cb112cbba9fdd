import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gymnasium", reason="gymnasium is not there: it comes with the extra 'tune'")

from tests.znn.tuner.problems import forward, problems, walk
from tests.znn.tuner.test_observation import another
from znn.tuner.environment import TuningEnv
from znn.tuner.moves import ACTIONS, State, act, mask
from znn.tuner.nestgraph import EDGES, NODES, SPACE, nest_graph
from znn.tuner.table import Result


def links(graph, kind):
    """From and to of the edges of a kind."""
    of = graph.edges[:, EDGES.index(kind)] > 0
    return {tuple(link) for link in graph.edge_links[of].tolist()}


def equal(one, other):
    return all(map(np.array_equal, one, other))


@given(problems(), st.integers(0, 2**32))
def test_equal_nests_are_equal_graphs_and_actions_change_them(problem, seed):
    *_, state = walk(problem, random.Random(seed), 5)
    graph = nest_graph(state)
    assert SPACE.contains(graph) and equal(graph, nest_graph(another(state)))
    for action, legal in zip(ACTIONS, mask(state)):
        assert not legal or not equal(graph, nest_graph(act(state, action))), str(action)


def test_edges_lead_inside_to_the_same_dimension_and_to_what_a_loop_moves():
    state = State(problem := forward(), problem.start)
    graph, loops = nest_graph(state), problem.start.loops
    count = len(loops)
    assert graph.nodes[:, :len(NODES)].sum(0).tolist() == [count, 3, 1]
    assert links(graph, "inside") == {(k, k + 1) for k in range(count - 1)}
    assert links(graph, "where") == {(count + 3, k) for k in range(count)}
    same = {(i, j) for i in range(count) for j in range(i + 1, count) if loops[i].dim == loops[j].dim
            and all(loops[k].dim != loops[i].dim for k in range(i + 1, j))}
    assert links(graph, "dimension") == same
    c = problem.contraction
    moved = {(k, count + t) for k, loop in enumerate(loops) for t, access in enumerate((c.out, c.a, c.b))
             if dict(access.strides).get(loop.dim)}
    assert links(graph, "moves") == moved


def test_an_environment_offers_graphs():
    env = TuningEnv([forward()], lambda *_: Result(1e-3, 0.5), form="graph")
    seen, _ = env.reset()
    assert env.observation_space.contains(seen) and equal(seen, nest_graph(env.state))
