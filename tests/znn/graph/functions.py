"""Random well-typed functions, and arrays for them."""
import numpy as np
from hypothesis import strategies as st

from znn.graph.ir import Function, Var, call, check, constant, let
from znn.graph.types import TensorType, volume

TRIPLES = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2))
SIZES = {"z": 13, "y": 41, "x": 31}  # room enough for what `functions` draws; odd, and more than a vector along x


def weights_like(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@st.composite
def functions(draw, dtype="f32", most=6):
    """A function of one volume, up to `most` calls, each of which may use any value before it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    kind, weights, lets = {"f32": np.float32, "f64": np.float64}[dtype], {}, []
    x = Var("x", volume(dtype, draw(st.integers(1, 3))))
    values = [x]

    def number(what, *shape):
        return constant(weights, f"v{len(lets)}.{what}", weights_like(rng, kind, *shape))

    def convolution(v):
        out = draw(st.integers(1, 3))
        bias = number("bias", out) if draw(st.booleans()) else None
        kernel, dilation = draw(TRIPLES), draw(TRIPLES)
        c = call("conv3d", v, number("weight", out, v.type.shape[0], *kernel), bias=bias, dilation=dilation,
                 activation=draw(st.sampled_from([None, None, "relu", (1.7, 0.6)])))
        made = let("onto", c).var.type
        same = [o for o in values if o.type == made and o is not x]
        return c.changed(onto=draw(st.sampled_from(same))) if same and draw(st.booleans()) else c

    def channels(v):
        first = draw(st.integers(0, v.type.shape[0] - 1))
        return call("channels", v, first=first, end=draw(st.integers(first + 1, v.type.shape[0])))

    def together(op):
        def make(v):
            others = [o for o in values if o.type.shape[op == "concat":] == v.type.shape[op == "concat":]]
            return call(op, v, draw(st.sampled_from(others)))
        return make

    makers = {
        "conv3d": convolution,
        "sum": lambda v: convolution(v).changed(bias=None, activation=None, onto=None),
        "max_filter": lambda v: call("max_filter", v, window=draw(TRIPLES), dilation=draw(TRIPLES)),
        "bias": lambda v: call("bias", v, number("bias", v.type.shape[0])),
        "scale": lambda v: call("scale", v, number("by", v.type.shape[0])),
        "relu": lambda v: call("relu", v),
        "tanh": lambda v: call("tanh", v, a=1.7, b=0.6),
        "add": together("add"), "concat": together("concat"), "channels": channels,
        "crop": lambda v: call("crop", v, low=(0, 1, 0), high=(0, 0, draw(st.integers(0, 1)))),
    }
    for i in range(draw(st.integers(1, most))):
        v = draw(st.sampled_from(values[-3:]))
        lets.append(let(f"v{i}", makers[draw(st.sampled_from(sorted(makers)))](v)))
        values.append(lets[-1].var)
    return check(Function("net", (x,), tuple(lets), values[-1], weights))


def volume_for(function, sizes=SIZES, seed=0):
    """A random input of a function, float64."""
    shape = TensorType("f64", function.params[0].type.shape).at(sizes).shape
    return np.random.default_rng(seed).standard_normal(shape)
