"""Every convolution of the networks in its three passes: GFLOP/s, share of this processor's peak, ratio to PyTorch.

    python benchmarks/layers.py                              # VD2D3D at output 1x100x100
    python benchmarks/layers.py --network N4 --threads 1

The peak is what a register-only loop of fused multiply-adds reaches in the same run. The peer is PyTorch's best of
contiguous and channels-last. Medians over rounds in which all of them take turns. Backward passes include the
activation's gradient; only useful multiplications are counted, none with zeros beside the gradient.
"""
import argparse
import json
import math
import statistics
import time

import numba
import numpy as np
import torch

import models
from znn.codegen import jit, target
from znn.codegen.emit import I64, Emitter
from znn.nn import Conv3d
from znn.runtime import conv, driver

NETWORKS = {"N4": ("N4", {}), "VD2D": ("VD2D", {}), "VD2D3D": ("VD2D3D", {"recursive": True})}
PASSES = ("forward", "data", "weights")


def peak_kernel(where, dtype, accumulators=24, steps=20_000):
    """A function of a number of tasks that keeps every vector unit busy, and the operations of one task."""
    e = Emitter(where, dtype, "ppppii", None)
    held = min(accumulators, where.registers - 3)
    one = e.broadcast(e.fn.args[1])

    def body(i, *acc):
        return [e.fma(one, v, one) for v in acc]

    acc = e.loop(I64(steps), [one] * held, body)
    for v in acc[1:]:
        acc[0] = e.b.fadd(acc[0], v)
    e.store(acc[0], e.fn.args[0])
    e.b.ret_void()
    address = jit.link(jit.object_code(e.module, where), where)
    memory = np.ones(64, dtype)
    p = memory.ctypes.data
    return lambda tasks: driver.run(address, p, p, p, p, tasks), 2 * held * steps * e.lanes


def convolutions(name, output):
    """(layer name, layer, input shape) of every convolution, by a dry run."""
    net = models.build(*NETWORKS[name]).eval()
    shape = [1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view))]
    found = []
    for key, layer in net.named_modules():
        if isinstance(layer, Conv3d):
            layer.register_forward_pre_hook(lambda m, x, key=key: found.append((key, m, tuple(x[0].shape))))
    with torch.no_grad():
        net(torch.zeros(shape))
    return found


def contestants(layer, shape):
    """Functions to time: ours and PyTorch's two layouts, for each pass."""
    torch.manual_seed(0)
    x, w, b = torch.randn(shape), layer.weight.detach(), layer.bias.detach() if layer.bias is not None else None
    d, relu = layer.dilation, layer.activation is not None
    a = [t.numpy() if t is not None else None for t in (x, w, b)]
    y = conv.forward(*a, d, relu)
    g = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    act = "relu" if relu else None
    out = {"forward": {"znn": lambda: conv.forward(*a, d, relu)},
           "data": {"znn": lambda: conv.backward(a[0], a[1], y, g, d, act, (True, False, False))},
           "weights": {"znn": lambda: conv.backward(a[0], a[1], y, g, d, act, (False, True, False))}}
    for form, layout in (("torch", torch.contiguous_format), ("torch channels-last", torch.channels_last_3d)):
        tx, tw = x.to(memory_format=layout), w.to(memory_format=layout)
        tg = torch.from_numpy(g).to(memory_format=layout)
        back = lambda mask, tx=tx, tw=tw, tg=tg: torch.ops.aten.convolution_backward(  # noqa: E731
            tg, tx, tw, None, [1] * 3, [0] * 3, d, False, [0] * 3, 1, mask)
        out["forward"][form] = lambda tx=tx, tw=tw: torch.nn.functional.conv3d(tx, tw, b, dilation=d)
        out["data"][form] = lambda back=back: back([True, False, False])
        out["weights"][form] = lambda back=back: back([False, True, False])
    return out, 2 * y.size * shape[1] * math.prod(layer.kernel) / 1e9


def seconds(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def measure(layer, shape, rounds, peak, threads):
    """{pass: {form: median seconds}} and the median peak in GFLOP/s, everything in turn."""
    forms, gflop = contestants(layer, shape)
    run, flops = peak
    times = {p: {f: [] for f in forms[p]} for p in PASSES}
    peaks = []
    for round_ in range(rounds + 1):
        spent = seconds(lambda: run(8 * threads))
        for p in PASSES:
            for f, call in forms[p].items():
                t = seconds(call)
                if round_:
                    times[p][f].append(t)
        if round_:
            peaks.append(8 * threads * flops / spent / 1e9)
    medians = {p: {f: statistics.median(t) for f, t in times[p].items()} for p in PASSES}
    return medians, gflop, statistics.median(peaks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="VD2D3D")
    parser.add_argument("--output", nargs=3, type=int, default=(1, 100, 100), metavar=("Z", "Y", "X"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    peak = peak_kernel(target.current(), np.dtype(np.float32))
    print(f"{args.network}, output {'x'.join(map(str, args.output))}, {args.threads} threads, {target.current().name}")
    columns = "".join(f" | {p + ' GFLOP/s':>15} {'peak':>5} {'torch':>6}" for p in PASSES)
    print(f"{'layer':10} {'maps':>9} {'kernel':8}{columns}")
    record = {}
    for key, layer, shape in convolutions(args.network, args.output):
        medians, gflop, top = measure(layer, shape, args.rounds, peak, args.threads)
        record[key] = {"gflop": gflop, "peak": top, "seconds": medians}
        row = f"{key:10} {layer.in_channels:4}-{layer.out_channels:<4} {','.join(map(str, layer.kernel)):8}"
        for p in PASSES:
            ours = medians[p]["znn"]
            theirs = min(t for f, t in medians[p].items() if f != "znn")
            row += f" | {gflop / ours:15.0f} {gflop / ours / top:5.2f} {theirs / ours:6.2f}"
        print(row, flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
