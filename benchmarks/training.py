"""Whole training steps of the networks, ours and PyTorch's, in turn in one run.

    python benchmarks/training.py                       # all networks, output 1x100x100
    python benchmarks/training.py --output 4 128 128 --networks VD2D3D

A step is forward, softmax cross-entropy, backward and an SGD update on one patch.  The peer is the same network on
`znn.use_engine("torch")`, in its best form: contiguous or channels-last, whichever is faster here.
Prints medians, and the ratio as the median over rounds; writes JSON beside it when asked (--json).
"""
import argparse
import json
import statistics
import time

import numba
import torch
from torch.nn import functional as F

import models
import znn
from znn.codegen import target

NETWORKS = {"N4": ("N4", {}), "VD2D": ("VD2D", {}), "VD2D3D": ("VD2D3D", {"recursive": True})}
FORMS = {"znn": ("znn", torch.contiguous_format), "torch": ("torch", torch.contiguous_format),
         "torch channels-last": ("torch", torch.channels_last_3d)}


def stepper(name, options, output, form):
    """A function that does one training step and returns the loss."""
    engine, layout = FORMS[form]
    torch.manual_seed(0)
    net = models.build(name, options).to(memory_format=layout)
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
    """Seconds of each round for each form, interleaved."""
    steps = {form: stepper(*NETWORKS[name], output, form) for form in FORMS}
    seconds = {form: [] for form in FORMS}
    for round_ in range(rounds + 1):
        for form, step in steps.items():
            start = time.perf_counter()
            step()
            if round_:  # the first compiles and warms
                seconds[form].append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--output", nargs=3, type=int, default=(1, 100, 100), metavar=("Z", "Y", "X"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="also write the seconds of every round here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    shape = "x".join(map(str, args.output))
    print(f"training step, output {shape}, {args.threads} threads, {target.current().name}, torch {torch.__version__}")
    print(f"{'network':8} {'znn s':>8} {'torch s':>8} {'(form)':22} {'torch / znn':>11}")
    record = {}
    for name in args.networks:
        seconds = record[name] = compare(name, args.output, args.rounds)
        peer = min((f for f in FORMS if f != "znn"), key=lambda f: statistics.median(seconds[f]))
        ratio = statistics.median(p / z for p, z in zip(seconds[peer], seconds["znn"]))
        ours, theirs = (statistics.median(seconds[f]) for f in ("znn", peer))
        print(f"{name:8} {ours:8.3f} {theirs:8.3f} {'(' + peer + ')':22} {ratio:11.2f}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"output": args.output, "threads": args.threads, "seconds": record}, file, indent=1)


if __name__ == "__main__":
    main()
