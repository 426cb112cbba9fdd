"""Compiled networks and the same networks as `znn.pipeline` runs a block without compiling, in turn in one run.

    python benchmarks/compiled.py                                  # three networks, output 8x128x128
    python benchmarks/compiled.py --outputs 1x30x30 8x128x128 --networks VD2D3D --threads 2
    python benchmarks/compiled.py --without join_sums              # what a pass brings: switch it off
    python benchmarks/compiled.py --precision bf16                 # beside the same network compiled in float32
    python benchmarks/compiled.py --precision int8 --beside bf16   # ... in bf16

Columns:

    layers     kvoxel/s of output, the network called in inference mode as `pipeline.inference.predict` calls it; with
               another precision than fp32 it is `znn.compile(net, beside)` instead
    compiled   of `znn.compile(net, precision)`; int8 is calibrated to the very input
    ratio      of the two in the same round: the median over rounds, with its least and greatest
    apart      largest difference of the two results, by the largest value
    planned    MB that a run takes beside its input, from `peak_bytes`
    ready      seconds to trace, rewrite, plan and lay out weights for one extent, kernels being in the cache

In each turn a contestant makes one call to warm the caches and one that is measured.
"""
import argparse
import statistics
import time

import measure
import numba
import torch

import models
import znn
from znn.codegen import target
from znn.graph.passes import PASSES
from znn.pipeline.prediction import PRECISIONS


def compare(name, output, rounds, without, precision, beside):
    """Seconds of each round by contestant, and what else the table shows."""
    torch.manual_seed(0)
    net = models.build(*measure.NETWORKS[name]).eval()
    x = torch.randn(1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)))

    def layers():
        with torch.inference_mode():
            return net(x)

    layers()  # kernels are compiled, or read from the cache
    start = time.perf_counter()
    fast = znn.compile(net, precision, without=without, samples=[x] if precision == "int8" else None)
    planned = fast.peak_bytes(x.shape[2:])
    ready = time.perf_counter() - start
    before = layers
    if precision != "fp32":
        whole = znn.compile(net, beside, without=without)
        before = lambda: whole(x)  # noqa: E731
    expected, found = before(), fast(x)
    apart = ((found - expected).abs().max() / expected.abs().max()).item()
    seconds = measure.in_turn({"layers": before, "compiled": lambda: fast(x)}, rounds)
    return seconds, {"apart": apart, "planned": planned, "ready": ready}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=measure.NETWORKS, default=list(measure.NETWORKS))
    parser.add_argument("--outputs", nargs="+", type=measure.extent, default=[(8, 128, 128)], metavar="ZxYxX")
    parser.add_argument("--threads", nargs="+", type=int, default=[numba.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without", nargs="+", choices=PASSES, default=(), metavar="PASS", help="passes not made")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--beside", choices=[p for p in PRECISIONS if p != "int8"], default="fp32",
                        help="what another precision than fp32 is compared with")
    parser.add_argument("--json", metavar="FILE", help="also write the seconds of every round here")
    args = parser.parse_args()
    print(f"inference, {target.current().name}, torch {torch.__version__}, kvoxel/s, {args.precision}"
          + (f", without {', '.join(args.without)}" if args.without else ""))
    before = "layers" if args.precision == "fp32" else f"  {args.beside}"
    print(f"network     output threads   {before} compiled  ratio                  apart  planned  ready")
    record = {}
    for name in args.networks:
        for output in args.outputs:
            for threads in args.threads:
                measure.use_threads(threads)
                seconds, about = compare(name, output, args.rounds, args.without, args.precision, args.beside)
                voxels = output[0] * output[1] * output[2] / 1e3
                rates = {k: voxels / s for k, s in measure.median(seconds).items()}
                ratios = [a / b for a, b in zip(seconds["layers"], seconds["compiled"])]
                shape = "x".join(map(str, output))
                print(f"{name:8} {shape:>9} {threads:7} {rates['layers']:8.1f} {rates['compiled']:8.1f}  "
                      f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) "
                      f"{about['apart']:8.1e} {about['planned'] / 1e6:8.1f} {about['ready']:6.2f}", flush=True)
                record[f"{name} {shape} {threads}"] = {**about, "seconds": seconds}
                if args.json:
                    measure.save(args.json, record)


if __name__ == "__main__":
    main()
