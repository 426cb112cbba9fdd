"""Layers of VD2D3D, forward: our default, ours after a search of seconds, PyTorch, TVM MetaSchedule after minutes.

    python -m venv tvm-env      # of its own; newer releases of apache-tvm-ffi end in segmentation faults
    tvm-env/bin/pip install numpy xgboost psutil cloudpickle apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1
    python benchmarks/metaschedule.py --tvm-python tvm-env/bin/python --trials 64 --json docs/measured/metaschedule.json

Every contestant is a process of its own; in each round each runs for a tenth of a second, so that no threads of the one
before are in its way, and then once timed; medians over rounds.  No bias, no activation; our packing of the weights
counts.  Our search has so many seconds for all kernels of a layer together.  MetaSchedule is tuned once into the folder
given, and skipped where there is no environment (``ZNN_TVM_PYTHON`` names it, too).
"""
import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import llvmlite.binding as llvm
import measure
import numba
import numpy as np
import torch

import models
from znn.codegen import target
from znn.nn import layers
from znn.runtime import conv, database
from znn.runtime.layer import Layer
from znn.tuner.measuring import Measurer
from znn.tuner.searches import SEARCHES, Budget, run
from znn.tuner.workloads import workloads

LAYERS = ("conv1b", "conv2b", "conv3b", "conv4b")
PEER = Path(__file__).with_name("tvm_peer.py")
AGAIN = 0.3          # share of the search's seconds in which its best is measured again, in turn with the default
WARM = 0.1           # seconds that a contestant runs before it is timed: threads of the one before may spin for a while
FALLBACK = "znver4"  # for an LLVM that does not know this processor


def chosen(names, output):
    """Layers of the recursive VD2D3D by name, without bias and activation."""
    net = models.build(*measure.NETWORKS["VD2D3D"])
    shape = (1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view)))
    found = {layer.name: layer for layer in layers(net, shape)}
    return {name: Layer(found[name].x_shape, found[name].w_shape, found[name].dilation, bias=False) for name in names}


def tune(layer, search, seconds):
    """Search schedules for the kernels of a forward pass and store what is better than the default; seconds it took."""
    measurer, found = Measurer(), workloads(Layer(layer.x_shape, layer.w_shape, layer.dilation, bias=False,
                                                  passes=("forward",)), target.current())
    begin = time.perf_counter()
    for k, workload in enumerate(found):
        problem, left = workload.problem, (seconds - (time.perf_counter() - begin)) / (len(found) - k)
        best, _ = min(run(SEARCHES[search], problem, measurer.measure, Budget(seconds=(1 - AGAIN) * left),
                          random.Random(0)), key=lambda entry: entry[1])
        default, again = measurer.again(problem, [problem.start, best], patience=AGAIN * left / 4)  # and two compile
        if again.seconds < default.seconds:
            database.store(problem.contraction, best, again.seconds, search, problem.dtype, problem.packed,
                           problem.target)
    return time.perf_counter() - begin


def serve(engine, spec):
    """Be a contestant: a line about it, then a time for every line of input."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(spec[name], np.float32) for name in ("x", "w"))
    dilation = tuple(spec["dilation"])
    if engine == "znn":
        calls = [lambda: conv.forward(x, w, dilation=dilation)]
    else:
        forms = (torch.contiguous_format, torch.channels_last_3d)
        operands = [[torch.from_numpy(t).to(memory_format=form) for t in (x, w)] for form in forms]
        calls = [lambda o=o: torch.nn.functional.conv3d(*o, dilation=dilation) for o in operands]
    for call in calls:
        call()
    print(json.dumps({"engine": engine}), flush=True)
    for warm in sys.stdin:
        print(min(_timed(call, float(warm) / len(calls)) for call in calls), flush=True)


def _timed(call, warm):
    end = time.perf_counter() + warm
    while time.perf_counter() < end:
        call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Contestant:
    """A process that times itself when asked."""

    def __init__(self, command, **environment):
        self._process = subprocess.Popen(command, env=os.environ | environment, text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self.about = json.loads(self._answer())

    def seconds(self):
        self._process.stdin.write(f"{WARM}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self):
        self._process.stdin.close()
        self._process.wait()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._process.args[:3])} ... ended with {self._process.wait()}: see above")
        return line


def compared(name, layer, args):
    """Everything about one layer."""
    spec = {"x": layer.x_shape, "w": layer.w_shape, "dilation": layer.dilation}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        tuned = {"ZNN_SCHEDULES": str(Path(folder, "schedules.sqlite"))}
        os.environ |= tuned  # where the search stores
        took = tune(layer, args.search, args.seconds)

        def contestant(command, **environment):
            found = Contestant(command, **environment)
            stack.callback(found.close)
            return found

        ours = [sys.executable, __file__, "--serve"]
        contestants = {}
        for trials in args.trials if args.tvm_python else ():
            command = [args.tvm_python, str(PEER), json.dumps(spec), str(trials),
                       str(Path(args.folder, f"{name} {'x'.join(map(str, layer.extent))} {trials}")),
                       f"{llvm.get_host_cpu_name()},{FALLBACK}"]
            contestants[f"MetaSchedule {trials}"] = contestant(command, TVM_NUM_THREADS=str(numba.get_num_threads()))
        contestants["default"] = contestant([*ours, "znn", json.dumps(spec)], ZNN_SCHEDULES="0")
        contestants["tuned"] = contestant([*ours, "znn", json.dumps(spec)], **tuned)
        contestants["PyTorch"] = contestant([*ours, "torch", json.dumps(spec)])
        rounds = [{key: c.seconds() for key, c in contestants.items()} for _ in range(args.rounds)]
        about = {key: c.about for key, c in contestants.items()}
    operations = 2 * np.prod(layer.extent) * np.prod(layer.w_shape)
    return {"layer": spec, "search": args.search, "search seconds": took, "about": about,
            "gflops": {k: float(operations / statistics.median(r[k] for r in rounds) / 1e9) for k in contestants},
            "faster": {k: statistics.median(r[k] / r["tuned"] for r in rounds) for k in contestants}}


def show(record):
    """Print the table in markdown."""
    names = list(dict.fromkeys(k for found in record.values() for k in found["gflops"]))
    print("\nGFLOP/s of the direct form; in brackets our time after the search goes into theirs so many times\n")
    print(f"| layer | {' | '.join(names)} | search, s | MetaSchedule, s |\n|{'---|' * (len(names) + 3)}")
    for layer, found in record.items():
        cells = [f"{found['gflops'][n]:.0f} ({found['faster'][n]:.2f})" if n in found["gflops"] else "" for n in names]
        theirs = ", ".join(f"{a['search seconds']:.0f}" for a in found["about"].values() if "trials" in a)
        print(f"| {layer} | {' | '.join(cells)} | {found['search seconds']:.1f} | {theirs} |")


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2], json.loads(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=LAYERS, metavar="NAME")
    parser.add_argument("--output", type=measure.extent, default=(1, 100, 100), metavar="ZxYxX", help="of the network")
    parser.add_argument("--search", choices=SEARCHES, default="policy")
    parser.add_argument("--seconds", type=float, default=2, help="of our search, for all kernels of a layer")
    parser.add_argument("--trials", nargs="+", type=int, default=[64], help="of MetaSchedule")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tvm-python", default=os.environ.get("ZNN_TVM_PYTHON"), metavar="PATH")
    parser.add_argument("--folder", default="runs/metaschedule", help="where MetaSchedule keeps what it tuned")
    parser.add_argument("--json", metavar="FILE", help="also write everything that was measured here; it is added to")
    args = parser.parse_args()
    if not args.tvm_python:
        print("no environment with TVM is named (--tvm-python): MetaSchedule is left out")
    measured = Path(args.json or "")
    record = json.loads(measured.read_text()) if measured.is_file() else {}
    record.pop("about", None)
    for name, layer in chosen(args.layers, args.output).items():
        record[f"{name}, {' and '.join(map(str, args.trials))} trials"] = compared(name, layer, args)
        if args.json:
            measure.save(args.json, record)
    show(record)


if __name__ == "__main__":
    main()
