"""Dense inference of whole networks, ours beside its peers, in turn in one run.

    pip install '.[bench]'                                         # the peers; what is absent is said
    python benchmarks/network.py                                   # N4, VD2D, VD2D3D, output 8x128x128
    python benchmarks/network.py --networks VD2D3D --outputs 8x128x128 --threads 2 --json docs/measured/network.json
    python benchmarks/network.py --contestants "znn fp32" "openvino f32"
    python benchmarks/network.py --outputs 30x512x512 --block 30x128x128 --rounds 1      # a whole stack, in blocks

Columns:

    kvoxel/s   of output, the median over rounds in which each makes a call to warm the caches and one that is measured
               (a stack in blocks is computed once a round: its first blocks warm the caches)
    znn fp32   kvoxel/s of "znn fp32" by its own, in the same round: the median, with its least and greatest
    MB         that its process holds at most while it computes, over what it held before it prepared the network; a
               process of its own, Linux only; of one block
    apart      largest difference from the same network in float64, by the range of that; of one block; int8 is
               calibrated to the very input

The peers compute by max-pool fragments (fragments.py) unless they say otherwise, since that is where they are best.
"""
import argparse
import functools
import itertools
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import measure
import numba
import torch
from fragments import Fragments
from peers import PEERS

import models
import znn
from znn.codegen import target
from znn.nn import functional
from znn.pipeline.prediction import PRECISIONS

OURS = "znn fp32"


def _znn(precision):
    def make(net, x, threads):
        return znn.compile(net, precision, samples=[x] if precision == "int8" else None)

    return make


def _znn_fragments(net, x, threads):
    """In fp32 and not compiled, which costs next to nothing at these sizes."""
    own = Fragments(net, functional.conv3d, functional.max_filter3d)

    def call(x):
        znn.use_engine("znn")
        try:
            with torch.inference_mode():
                return own(x)
        finally:
            znn.use_engine("torch")

    return call


CONTESTANTS = {**{f"znn {precision}": _znn(precision) for precision in PRECISIONS}, "znn fragments": _znn_fragments,
               **PEERS}


def problem(name, output):
    """A network with weights by chance, and an input for so large an output."""
    znn.use_engine("torch")  # computes what is not compiled by us
    torch.manual_seed(0)
    net = models.build(*measure.NETWORKS[name]).eval()
    return net, torch.randn(1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)))


def ready(names, net, x, threads):
    """Functions by name, and why others have none."""
    made, absent = {}, {}
    for name in names:
        try:
            made[name] = CONTESTANTS[name](net, x, threads)
            made[name](x)
        except ImportError as error:
            absent[name] = f"not installed: {error.name}"
    return made, absent


def apart(net, x, calls):
    """For each function the largest difference of its result from the network's in float64, by the range of that."""
    with torch.inference_mode():
        expected = net.double()(x.double())
    net.float()
    scale = (expected.max() - expected.min()).item()
    return {name: (torch.as_tensor(call(x)).double() - expected).abs().max().item() / scale
            for name, call in calls.items()}


def peak_memory(contestant, name, output, threads):
    """Bytes over those held before, in this process; 0 where the system does not tell."""
    measure.use_threads(threads)
    net, x = problem(name, output)
    before = _status("VmRSS")
    call = CONTESTANTS[contestant](net, x, threads)
    call(x)
    forget = Path("/proc/self/clear_refs")
    if not before or not forget.exists():
        return 0
    forget.write_text("5")  # the peak begins anew
    call(x)
    return _status("VmHWM") - before


def _status(key):
    """Bytes that /proc says of this process."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(key)), 0)


def alone(function, *arguments):
    """What a function gives in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def in_blocks(call, volume, output, block):
    """The logits of a volume, (channels, *output), computed in blocks of so large an output."""
    context = [n - o for n, o in zip(volume.shape[2:], output)]
    logits = None
    for corner in itertools.product(*(range(0, n, b) for n, b in zip(output, block))):
        read = (slice(a, a + b + c) for a, b, c in zip(corner, block, context))
        part = torch.as_tensor(call(volume[:, :, *read].contiguous()))[0]
        logits = part.new_empty(len(part), *output) if logits is None else logits
        logits[:, *(slice(a, a + b) for a, b in zip(corner, block))] = part
    return logits


def compare(name, output, block, threads, names, rounds):
    """Everything that the table has, by contestant, and why others are absent."""
    measure.use_threads(threads)
    net, x = problem(name, block)
    calls, absent = ready(names, net, x, threads)
    differences = apart(net, x, calls)
    if output == block:
        timed = {each: functools.partial(call, x) for each, call in calls.items()}
    else:
        stack = problem(name, output)[1]
        timed = {each: functools.partial(in_blocks, call, stack, output, block) for each, call in calls.items()}
    seconds = measure.in_turn(timed, rounds, warm=output == block)
    return {each: {"seconds": seconds[each], "apart": differences[each],
                   "bytes": alone(peak_memory, each, name, block, threads)} for each in calls}, absent


def show(found, absent, voxels):
    """Print the table in markdown, the fastest first."""
    print("| | kvoxel/s | znn fp32 by it | MB | apart |\n|---|---|---|---|---|")
    middle = {name: statistics.median(each["seconds"]) for name, each in found.items()}
    for name in sorted(found, key=middle.get):
        ratio = ""
        if OURS in found:
            ratios = [theirs / ours for theirs, ours in zip(found[name]["seconds"], found[OURS]["seconds"])]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {voxels / middle[name] / 1e3:.0f} | {ratio} | {found[name]['bytes'] / 1e6:.0f} | "
              f"{found[name]['apart']:.1e} |")
    for name, why in absent.items():
        print(f"| {name} | {why} | | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=measure.NETWORKS, default=list(measure.NETWORKS))
    parser.add_argument("--outputs", nargs="+", type=measure.extent, default=[(8, 128, 128)], metavar="ZxYxX",
                        help="extents that are multiples of 16")
    parser.add_argument("--block", type=measure.extent, metavar="ZxYxX", help="extent in which outputs are computed, "
                        "a divisor of them in every axis; unless given, all at once")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME",
                        help=", ".join(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write the seconds of every round here, beside "
                        "what is there of other networks and outputs")
    args = parser.parse_args()
    if args.block and any(n % b for output in args.outputs for n, b in zip(output, args.block)):
        parser.error("--block: expected a divisor of every output in every axis")
    record = measure.kept(args.json)
    for name in args.networks:
        for output in args.outputs:
            block = args.block or output
            shape = " in ".join("x".join(map(str, e)) for e in dict.fromkeys((output, block)))
            print(f"\n{name}, output {shape}, {args.threads} threads, {target.current().name}, "
                  f"torch {torch.__version__}\n")
            found, absent = compare(name, output, block, args.threads, args.contestants, args.rounds)
            show(found, absent, output[0] * output[1] * output[2])
            record[f"{name} {shape} {args.threads}"] = found
            if args.json:
                measure.save(args.json, record)


if __name__ == "__main__":
    main()
