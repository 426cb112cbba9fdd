"""Every convolution of the networks in its three passes: GFLOP/s, share of what the processor can do, PyTorch's time.

    python benchmarks/layers.py                                   # the three networks, outputs 1x100x100 and 4x128x128
    python benchmarks/layers.py --networks VD2D3D --outputs 1x100x100 --threads 1
    python benchmarks/layers.py --target avx2                     # as a processor with smaller vectors would
    python benchmarks/layers.py --direct                          # every multiplication of the direct form is made

Columns, for the passes forward, data (gradient for the input) and weights (gradient for the weights):

    GF/s    operations of the direct form (2 for a multiplication and addition) by the seconds of the pass, packing
            included; convolutions at points make about half of them, and may pass the peak
    peak    its share of what a loop of fused multiply-adds in registers reaches, measured in the same rounds
    roof    its share of the roofline: the larger of operations by that peak and bytes, each operand read or written
            once, by the bandwidth of a copy of as many bytes, measured in the same rounds
    torch   seconds of PyTorch, the better of contiguous and channels-last, by ours
    prep    what both backward passes need once: the gradient times the activation's derivative, rows padded, the bias's
            gradient; GB/s, and its share of the copy's
    back    the whole backward of the layer: PyTorch's activation, data, weights and bias by ours

Medians over rounds in which all contestants take turns.  At the end the geometric means over the layers that are bound
by multiplications: 24 channels or more on both sides.
"""
import argparse
import math
import os
import statistics

import measure
import numba
import torch
from torch.nn import functional as F

import models
from znn.codegen import target
from znn.nn import Conv3d
from znn.runtime import conv, switches
from znn.tuner.peak import peak

PASSES = ("forward", "data", "weights")
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last_3d}
WIDE = 24  # channels from which on a convolution is bound by its multiplications


def convolutions(name, output):
    """(layer name, layer, input shape) of every convolution of a network, by a dry run without values."""
    net = models.build(*measure.NETWORKS[name]).to("meta").eval()
    named = {layer: key for key, layer in net.named_modules() if isinstance(layer, Conv3d)}
    found = []

    def note(layer, args):
        x, *added = args
        found.extend((named[m], m, tuple(t.shape)) for m, t in ((layer, x), *added))

    for layer in named:
        layer.register_forward_pre_hook(note)
    net(torch.empty(1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)), device="meta"))
    return sorted(found, key=lambda entry: list(named).index(entry[1]))


def contestants(layer, shape):
    """Functions to time, by (pass, form), and what the passes do: operations, and bytes that they read and write."""
    torch.manual_seed(0)
    d, act = layer.dilation, layer.activation and layer.activation.kind
    x, w = torch.randn(shape), torch.randn(layer.weight.shape) / math.sqrt(layer.weight[0].numel())
    b = torch.randn(layer.out_channels)
    ax, aw, ab = x.numpy(), w.numpy(), b.numpy()
    y = conv.forward(ax, aw, ab, d, act)
    grad = torch.randn(y.shape)
    g, left, _ = conv.prepared(grad.numpy(), y, act, d[2] * (layer.kernel[2] - 1))
    of = g, left, y.shape, d
    calls = {
        ("forward", "znn"): lambda: conv.forward(ax, aw, ab, d, act),
        ("data", "znn"): lambda: conv.backward_data(shape, aw, *of),
        ("weights", "znn"): lambda: conv.backward_weights(ax, aw.shape, *of),
        ("prep", "znn"): lambda: conv.prepared(grad.numpy(), y, act, d[2] * (layer.kernel[2] - 1)),
    }
    for form, layout in LAYOUTS.items():
        calls |= peer(form, layout, x, w, b, torch.from_numpy(y), grad, d, act)
    moved = {"forward": x.nbytes + y.nbytes, "data": g.nbytes + x.nbytes, "weights": g.nbytes + x.nbytes,
             "prep": grad.nbytes + g.nbytes + (y.nbytes if act else 0)}
    return calls, 2 * y.size * layer.weight[0].numel(), moved


def peer(form, layout, x, w, b, y, grad, dilation, act):
    """PyTorch's functions in one layout."""
    x, w, y, grad = (t.to(memory_format=layout) for t in (x, w, y, grad))

    def back(*mask):
        return torch.ops.aten.convolution_backward(grad, x, w, list(b.shape), [1] * 3, [0] * 3, dilation, False,
                                                   [0] * 3, 1, mask)

    def forward():
        s = F.conv3d(x, w, b, dilation=dilation)
        return F.relu_(s) if act else s

    return {("forward", form): forward,
            ("data", form): lambda: back(True, False, False), ("weights", form): lambda: back(False, True, False),
            ("prep", form): (lambda: torch.ops.aten.threshold_backward(grad, y, 0)) if act else (lambda: None),
            ("back", form): lambda: back(True, True, True)}


def figures(layer, shape, rounds, threads):
    """What is known of one layer: a dict of numbers by pass."""
    calls, operations, moved = contestants(layer, shape)
    burn, burnt = peak(threads)
    copies = {("copy", p): measure.copying(n) for p, n in moved.items()}
    seconds = measure.median(measure.in_turn({"peak": burn, **copies, **calls}, rounds))
    top = burnt / seconds["peak"]
    out = {"gflop": operations / 1e9, "peak_gflops": top / 1e9,
           "seconds": {" ".join(name): s for name, s in seconds.items() if name != "peak"}}
    for p in PASSES:
        ours = seconds[p, "znn"]
        out[p] = {"gflops": operations / ours / 1e9, "peak": operations / ours / top,
                  "roof": max(operations / top, seconds["copy", p]) / ours,
                  "torch": min(seconds[p, form] for form in LAYOUTS) / ours}
    prep = seconds["prep", "znn"]
    out["prep"] = {"gbps": moved["prep"] / prep / 1e9, "copy": seconds["copy", "prep"] / prep}
    theirs = min(seconds["back", form] + seconds["prep", form] for form in LAYOUTS)
    out["back"] = theirs / (prep + seconds["data", "znn"] + seconds["weights", "znn"])
    return out


def line(key, layer, found):
    """A row of the table."""
    text = f"{key:9} {layer.in_channels:3}-{layer.out_channels:<3} {','.join(map(str, layer.kernel)):5}"
    for p in PASSES:
        f = found[p]
        text += f" | {f['gflops']:6.0f} {f['peak']:4.2f} {f['roof']:4.2f} {f['torch']:5.2f}"
    return text + f" | {found['prep']['gbps']:4.0f} {found['prep']['copy']:4.2f} | {found['back']:5.2f}"


def means(layers, record):
    """For each pass the geometric means of two columns over the wide layers, and the least share of the peak."""
    out = {}
    for p in PASSES:
        wide = [record[key][p] for key, layer, _ in layers if min(layer.in_channels, layer.out_channels) >= WIDE]
        out[p] = {q: statistics.geometric_mean(f[q] for f in wide) for q in ("peak", "torch")}
        out[p]["least peak"] = min(f["peak"] for f in wide)
    return out


def table(name, output, threads, rounds):
    """Measure and print one network; everything that was found."""
    measure.use_threads(threads)
    layers = convolutions(name, output)
    form = ", direct" if not switches.on("ZNN_WINOGRAD") else ""
    print(f"\n{name}, output {'x'.join(map(str, output))}, {threads} thread{'s' * (threads > 1)}, "
          f"{target.current().name}{form}, torch {torch.__version__}")
    heads = "".join(f" | {p + ' GF/s':>{6 if p == 'data' else 0}} peak roof torch" for p in ("fwd", "data", "wgt"))
    print(f"{'layer':9} {'maps':7} {'taps':5}{heads.replace('fwd GF/s', ' GF/s')} | prep copy |  back")
    record = {}
    for key, layer, shape in layers:
        record[key] = figures(layer, shape, rounds, threads)
        print(line(key, layer, record[key]), flush=True)
    record["means"] = means(layers, record)
    for p, m in record["means"].items():
        print(f"{p}: geometric mean {m['peak']:.3f} of the peak (least {m['least peak']:.2f}), "
              f"{m['torch']:.2f} x PyTorch")
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=measure.NETWORKS, default=list(measure.NETWORKS))
    parser.add_argument("--outputs", nargs="+", type=measure.extent, default=[(1, 100, 100), (4, 128, 128)],
                        metavar="ZxYxX")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, numba.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--target", choices=target.available(), default=target.current().name)
    parser.add_argument("--direct", action="store_true", help="compute nothing at points (ZNN_WINOGRAD=0)")
    parser.add_argument("--json", metavar="FILE", help="also write everything that was measured here")
    args = parser.parse_args()
    if args.direct:
        os.environ["ZNN_WINOGRAD"] = "0"
    record = {}
    with target.use_target(args.target):
        for name in args.networks:
            for output in args.outputs:
                for threads in args.threads:
                    key = f"{name} {'x'.join(map(str, output))} {threads}"
                    record[key] = table(name, output, threads, args.rounds)
                    if args.json:
                        measure.save(args.json, record)


if __name__ == "__main__":
    main()
