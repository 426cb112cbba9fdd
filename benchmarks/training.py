"""Whole training steps of the networks, ours and PyTorch's, in turn in one run.

    python benchmarks/training.py                              # three networks, outputs 1x100x100 and 4x128x128
    python benchmarks/training.py --outputs 1x100x100 --networks VD2D3D --threads 2

A step is forward, softmax cross-entropy, backward and an SGD update on one patch.  The peer is the same network on
`znn.use_engine("torch")`, in its best form: contiguous or channels-last, whichever is faster here.  In each turn a
contestant makes one step to warm the caches and one that is measured.  Prints medians, and the ratio as the median over
rounds with its least and greatest; "first" is what the first step of all took, kernels compiled or read from the cache.
"""
import argparse
import statistics
import time

import measure
import numba
import torch
from torch.nn import functional as F

import models
import znn
from znn.codegen import target

FORMS = {"znn": ("znn", torch.contiguous_format), "contiguous": ("torch", torch.contiguous_format),
         "channels-last": ("torch", torch.channels_last_3d)}


def stepper(name, output, form):
    """A function that does one training step and returns the loss."""
    engine, layout = FORMS[form]
    torch.manual_seed(0)
    net = models.build(*measure.NETWORKS[name]).to(memory_format=layout)
    shape = [n + f - 1 for n, f in zip(output, net.field_of_view)]
    x = torch.randn(1, net.in_channels, *shape).to(memory_format=layout)
    truth = torch.randint(0, 2, (1, *output))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def step():
        znn.use_engine(engine)
        sgd.zero_grad()
        loss = F.cross_entropy(net(x), truth)
        loss.backward()
        sgd.step()
        return loss.item()

    return step


def compare(name, output, rounds):
    """Seconds of each round for each form, and of our first step."""
    steps = {form: stepper(name, output, form) for form in FORMS}
    start = time.perf_counter()
    steps["znn"]()
    first = time.perf_counter() - start
    return measure.in_turn(steps, rounds), first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=measure.NETWORKS, default=list(measure.NETWORKS))
    parser.add_argument("--outputs", nargs="+", type=measure.extent, default=[(1, 100, 100), (4, 128, 128)],
                        metavar="ZxYxX")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, numba.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="also write the seconds of every round here")
    args = parser.parse_args()
    print(f"training steps, {target.current().name}, torch {torch.__version__}")
    print("network     output threads  first s    znn s  torch s form          torch / znn")
    record = {}
    for name in args.networks:
        for output in args.outputs:
            for threads in args.threads:
                measure.use_threads(threads)
                seconds, first = compare(name, output, args.rounds)
                middle = measure.median(seconds)
                peer = min((f for f in FORMS if f != "znn"), key=middle.get)
                ratios = [p / z for p, z in zip(seconds[peer], seconds["znn"])]
                shape = "x".join(map(str, output))
                print(f"{name:8} {shape:>9} {threads:7} {first:8.2f} {middle['znn']:8.3f} {middle[peer]:8.3f} "
                      f"{peer:13} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
                record[f"{name} {shape} {threads}"] = {"first": first, "seconds": seconds}
                if args.json:
                    measure.save(args.json, record)


if __name__ == "__main__":
    main()
