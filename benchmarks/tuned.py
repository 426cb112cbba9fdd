"""Training steps and inference of a network with the schedules that tune.py has stored, and with the rule's alone.

    ZNN_SCHEDULES=tuned.sqlite python tune.py model=vd2d3d
    python benchmarks/tuned.py tuned.sqlite --network VD2D3D --output 1x100x100

Both take turns in one run; in each turn one call to warm the caches and one that is measured.  The ratio is that of the
two in the same round: the median over rounds, with its quartiles.
"""
import argparse
import os
import statistics

import measure
import torch
from training import stepper

import models
import znn
from znn.runtime import database


def under(schedules, call):
    """A call that looks into a database of schedules, "0" for none."""
    def made():
        if os.environ.get("ZNN_SCHEDULES") != schedules:
            os.environ["ZNN_SCHEDULES"] = schedules
            database.forget()
        return call()

    return made


def inference(name, output):
    """A function that computes a map, compiled with the schedules that are there when it is made."""
    torch.manual_seed(0)
    net = models.build(*measure.NETWORKS[name]).eval()
    x = torch.randn(1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)))
    fast = znn.compile(net)
    fast(x)
    return lambda: fast(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", help="database that tune.py has filled")
    parser.add_argument("--network", choices=measure.NETWORKS, default="VD2D3D")
    parser.add_argument("--output", type=measure.extent, default=(1, 100, 100), metavar="ZxYxX", help="tuned for")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if not os.path.isfile(args.schedules):
        raise SystemExit(f"{args.schedules}: no such file; fill it by ZNN_SCHEDULES={args.schedules} python tune.py")
    ways = {"tuned": args.schedules, "rule": "0"}
    kinds = {"training step": lambda: stepper(args.network, args.output, "znn"),
             "inference": lambda: inference(args.network, args.output)}
    print(f"{args.network} {'x'.join(map(str, args.output))}      rule, s  tuned, s  rule / tuned (quartiles)")
    for kind, make in kinds.items():
        calls = {way: under(schedules, under(schedules, make)()) for way, schedules in ways.items()}
        seconds = measure.in_turn(calls, args.rounds)
        ratios = [r / t for r, t in zip(seconds["rule"], seconds["tuned"])]
        low, _, high = statistics.quantiles(ratios, n=4)
        middle = measure.median(seconds)
        print(f"{kind:16} {middle['rule']:9.4f} {middle['tuned']:9.4f}  {statistics.median(ratios):.3f} ({low:.3f} to "
              f"{high:.3f})", flush=True)


if __name__ == "__main__":
    main()
