"""A loop nest with a cursor as a graph, for networks that read graphs: what `observation` says in rows, said in edges.

Nodes are the loops from the outermost, the three tensors, and one of the circumstances and what is counted.  An edge
leads from a loop to the next one inside, to the next one of the same dimension, and to every tensor whose address it
moves; from the circumstances one leads to every loop.  Needs the optional extra ``tune``.
"""
import gymnasium
import numpy as np

from znn.tuner.estimate import ESTIMATES, estimates
from znn.tuner.observation import BINS, CIRCUMSTANCES, FEATURES, LARGEST, circumstances, loop_rows

OF_A_LOOP = FEATURES[:FEATURES.index("bytes out")]
NODES = "loop", "tensor", "circumstances"
EDGES = "inside", "dimension", "moves", "where"
NODE_FEATURES = (*NODES, *OF_A_LOOP, "out", "a", "b", *CIRCUMSTANCES, *ESTIMATES)
EDGE_FEATURES = (*EDGES, "stride", "bytes")
SPACE = gymnasium.spaces.Graph(gymnasium.spaces.Box(0, LARGEST, (len(NODE_FEATURES),), np.float32),
                               gymnasium.spaces.Box(0, LARGEST, (len(EDGE_FEATURES),), np.float32))


def nest_graph(state):
    """A state as a graph.

    Parameters
    ----------
    state : State

    Returns
    -------
    gymnasium.spaces.GraphInstance
        ``nodes`` (n, len(NODE_FEATURES)), ``edges`` (e, len(EDGE_FEATURES)), float32, and ``edge_links`` (e, 2), int:
        from, to.  Sizes are scaled as in `observation`; a stride is the number of its bin by the number of bins.
    """
    plan = state.problem.plan(state.schedule)
    rows, count = loop_rows(state, plan), len(state.schedule.loops)
    tensors, where = range(count, count + 3), count + 3
    nodes = np.zeros((count + 4, len(NODE_FEATURES)), np.float32)
    nodes[:count, 0], nodes[count:where, 1], nodes[where, 2] = 1, 1, 1
    after = len(NODES) + len(OF_A_LOOP)
    nodes[:count, len(NODES):after] = rows[:, :len(OF_A_LOOP)]
    nodes[count:where, after:after + 3] = np.eye(3)
    nodes[where, after + 3:] = [*circumstances(state.problem), *estimates(state.problem, plan)]
    dims = [loop.dim for loop in state.schedule.loops]
    links = [(k, k + 1, "inside", 0, 0) for k in range(count - 1)]
    links += [(k, k + 1 + dims[k + 1:].index(dim), "dimension", 0, 0) for k, dim in enumerate(dims)
              if dim in dims[k + 1:]]
    for number, node in enumerate(tensors):
        first = FEATURES.index("stride out 0") + number * BINS
        bins = rows[:, first:first + BINS].argmax(1)
        touched = rows[:, len(OF_A_LOOP) + number]
        links += [(k, node, "moves", bins[k] / BINS, touched[k]) for k in range(count) if bins[k]]
    links += [(where, k, "where", 0, 0) for k in range(count)]
    edges = np.array([[*(kind == name for name in EDGES), stride, touched] for *_, kind, stride, touched in links],
                     np.float32).reshape(-1, len(EDGE_FEATURES))
    return gymnasium.spaces.GraphInstance(nodes, edges, np.array([link[:2] for link in links], int).reshape(-1, 2))
