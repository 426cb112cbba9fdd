"""How long kernels take to compile, and how soon a network starts when its kernels are kept from an earlier run.

    python benchmarks/compile.py

For each network one training step in a process of its own: with an empty cache of kernels, and again with what that
left.  Milliseconds of a kernel from schedule to machine code in memory: median, 95th percentile, the longest; seconds
in which all kernels of the step were made, and beside them those of the step after it, which makes none.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import measure
import torch

import models
from znn.codegen import target
from znn.runtime import kernel


def report(name, output):
    """Run two training steps; the seconds of each kernel that was made, and of both steps."""
    made = []

    class Timed(kernel.Kernel):
        def __init__(self, *args):
            start = time.perf_counter()
            super().__init__(*args)
            made.append(time.perf_counter() - start)

    kernel.Kernel = Timed
    net = models.build(*measure.NETWORKS[name])
    x = torch.randn(1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)))
    steps = []
    for _ in range(2):
        start = time.perf_counter()
        net(x).square().mean().backward()
        steps.append(time.perf_counter() - start)
    return {"kernels": made, "steps": steps}


def child(name, output, cache):
    """`report` in a new process whose kernels are kept in `cache`."""
    out = subprocess.run([sys.executable, __file__, "--child", name, "--output", "x".join(map(str, output))],
                         env=os.environ | {"XDG_CACHE_HOME": cache, "ZNN_KERNEL_CACHE": "1"},
                         stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(out.stdout)


def line(name, state, found):
    """A row of the table."""
    ms = sorted(1000 * s for s in found["kernels"])
    percentile = ms[min(len(ms) - 1, int(0.95 * len(ms)))]
    return (f"{name:7} {state:6} {len(ms):7} {statistics.median(ms):7.1f} {percentile:7.1f} {ms[-1]:7.1f} "
            f"{sum(ms) / 1000:8.2f} {found['steps'][0]:10.2f} {found['steps'][1]:11.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=measure.NETWORKS, default=list(measure.NETWORKS))
    parser.add_argument("--output", type=measure.extent, default=(1, 100, 100), metavar="ZxYxX")
    parser.add_argument("--json", metavar="FILE", help="also write everything that was measured here")
    parser.add_argument("--child", choices=measure.NETWORKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(report(args.child, args.output)))
        return
    print(f"output {'x'.join(map(str, args.output))}, {target.current().name}")
    print(f"{'network':7} {'cache':6} kernels  median     95%    most     sum s first step second step")
    record = {}
    for name in args.networks:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty", "filled"):
                record[f"{name} {state}"] = found = child(name, args.output, cache)
                print(line(name, state, found), flush=True)
    if args.json:
        measure.save(args.json, record)


if __name__ == "__main__":
    main()
