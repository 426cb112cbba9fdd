"""TVM MetaSchedule on one convolution, for metaschedule.py: in TVM's environment, which has nothing of ours.

    python tvm_peer.py LAYER TRIALS FOLDER PROCESSORS

LAYER is JSON: x (1, in, z, y, x), w (out, in, kz, ky, kx), dilation.  Tunes into the folder, or takes what is there;
prints a line of JSON about it; then times the best kernel once for every line of input, and prints the seconds.
PROCESSORS are names for LLVM, of which the first that it knows is taken.  TVM_NUM_THREADS says how many threads.
"""
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule
from tvm.target.codegen import llvm_get_cpu_archlist


def convolution(layer):
    """The function to tune, and the shapes of its arguments."""
    x, w = te.placeholder(layer["x"], name="x"), te.placeholder(layer["w"], name="w")
    y = topi.nn.conv3d_ncdhw(x, w, 1, 0, layer["dilation"], 1)
    function = te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")
    return function, [tuple(map(int, t.shape)) for t in (x, w, y)]


def tuned(function, target, trials, folder):
    """The database of a search of so many trials, and the seconds it took; as before if it was made before."""
    note = Path(folder, f"{trials}.json")
    if note.exists():
        return meta_schedule.database.JSONDatabase(work_dir=folder), json.loads(note.read_text())["seconds"]
    begin = time.perf_counter()
    database = meta_schedule.tune_tir(
        mod=tvm.IRModule({"main": function}), target=target, work_dir=folder, max_trials_global=trials,
        num_trials_per_iter=32, num_tuning_cores=int(os.environ["TVM_NUM_THREADS"]), seed=1)
    seconds = time.perf_counter() - begin
    note.write_text(json.dumps({"seconds": seconds}))
    return database, seconds


def main():
    layer, trials, folder, processors = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4].split(",")
    out, sys.stdout = sys.stdout, sys.stderr  # TVM reports on stdout
    known = set(llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm"})))
    processor = next(name for name in processors if name in known)
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": int(os.environ["TVM_NUM_THREADS"])})
    function, shapes = convolution(layer)
    os.makedirs(folder, exist_ok=True)
    database, seconds = tuned(function, target, trials, folder)
    kernel = tvm.compile(meta_schedule.tir_integration.compile_tir(database, function, target).mod, target)["main"]
    rng = np.random.default_rng(0)
    arguments = [tvm.runtime.tensor(rng.standard_normal(shape, np.float32), tvm.cpu()) for shape in shapes]
    about = {"tvm": tvm.__version__, "processor": processor, "trials": trials, "search seconds": seconds}
    print(json.dumps(about), file=out, flush=True)
    for warm in sys.stdin:
        end = time.perf_counter() + float(warm)
        while time.perf_counter() < end:
            kernel(*arguments)
        begin = time.perf_counter()
        kernel(*arguments)
        print(time.perf_counter() - begin, file=out, flush=True)


if __name__ == "__main__":
    main()
