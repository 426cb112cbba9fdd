"""Searches for schedules on workloads held out from training: what each reaches after how long.

    python benchmarks/tuner.py runs/tuner.jsonl --workloads 20 --seeds 5 --seconds 2 10    # goes on where it stopped
    python benchmarks/tuner.py runs/tuner.jsonl --slice 50                                 # begins nothing after 50 s
    python benchmarks/tuner.py runs/tuner.jsonl --report --json docs/measured/tuner.json --picture docs/tuner.png

All searches have the same space, generator and measuring.  A run of one has a seed, a table of its own, and so many
seconds for everything it does, as in tune.py: planning, compiling, checking and measuring in three quarters of them,
the rest to measure its best few again beside the default and choose (`znn.tuner.settling`).  Every run is a line of the
file, and what the file has is not run again.  When all runs of a workload are there, what they chose, and every
schedule that was the best so far of one, is measured again twice, in turn with the default.  The first of these times
says which is the best known, and only the second ones count: the luckiest of many is not as good as it looked.

The table has the share of the best known schedule (least time known by the schedule's): for each workload the median
over seeds, then the geometric mean over workloads, of what runs of so many seconds chose, and of what was the best
after so many measurements of the longest ones.  "alone" is what a search chooses without measuring any.
"""
import argparse
import contextlib
import importlib
import itertools
import json
import math
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path

import measure

from znn.codegen import target
from znn.loops import Schedule
from znn.tuner.agent import policy
from znn.tuner.measuring import Measurer
from znn.tuner.searches import SEARCHES, Budget, best_so_far, recipe, run
from znn.tuner.settling import SEARCHING, finalists, settled
from znn.tuner.workloads import published

MEASUREMENTS = 10, 30
# searches that choose without measuring, too
ALONE = {"recipe": lambda problem, seed: recipe.best(problem), "policy": policy.best}
LEAVE_OUT = ("exhaustive",)      # ends only in small spaces
AGAIN = 2                        # times that schedules are measured again
TURN = 16                        # schedules that are measured again together
SPREAD, PATIENCE = 0.01, 0.25    # of that
COLOURS = 20                     # of the picture's lines


def chosen(workloads, count):
    """So many workloads, kinds of contraction in turn, else by chance; the larger choice begins with the smaller."""
    kinds = defaultdict(list)
    for workload in random.Random(0).sample(workloads, len(workloads)):
        kinds[workload.problem.contraction.name].append(workload)
    turns = sorted((i, kind) for kind, of_kind in kinds.items() for i in range(len(of_kind)))
    return [kinds[kind][i] for i, kind in turns][:count]


def searched(problem, name, seed, seconds):
    """Run a search; [[seconds since the beginning, schedule, its time or None]], and the schedule chosen."""
    begin, found, timed, measurer = time.perf_counter(), [], [], Measurer()
    for schedule, took in run(SEARCHES[name], problem, measurer.measure, Budget(seconds=SEARCHING * seconds),
                              random.Random(seed)):
        timed.append((schedule, took))
        found.append([time.perf_counter() - begin, str(schedule), took if took < math.inf else None])
    last = finalists(problem, timed)
    _, winner = settled(measurer, problem, last, begin + seconds - time.perf_counter())
    return found, str(last[winner])


def alone(problem, name, seed):
    """What is chosen unmeasured; as `searched`, without a time."""
    begin = time.perf_counter()
    schedule = str(ALONE[name](problem, seed))
    return [[time.perf_counter() - begin, schedule, None]], schedule


def improvements(found):
    """[(seconds, measurements, schedule)] where a run's best changes; the only one for a schedule that stands alone."""
    if len(found) == 1:
        return [(found[0][0], 1, found[0][1])]
    out = []
    for k, (schedule, took) in enumerate(best_so_far((text, took or math.inf) for _, text, took in found)):
        if took < math.inf and (not out or out[-1][2] != schedule):
            out.append((found[k][0], k + 1, schedule))
    return out


def again(problem, texts):
    """Times of schedules relative to the default's, all in turn with it; None for failures."""
    others = [text for text in texts if text != str(problem.start)]
    start, *results = Measurer().again(problem, [problem.start, *map(Schedule.parse, others)], SPREAD, PATIENCE)
    found = {text: None if r.failure else r.seconds / start.seconds for text, r in zip(others, results)}
    return {str(problem.start): 1.0} | found


class Runs:
    """The lines of a file: runs by (workload, search, seed, seconds), what they chose, and times measured again, a
    list for each schedule, by workload."""

    def __init__(self, path):
        self.path, self.runs, self.chosen, self.ratios = Path(path), {}, {}, {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            self._keep(json.loads(line))

    def add(self, entry):
        self._keep(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, workload):
        """{(search, seed, seconds): found} of a workload."""
        return {key[1:]: found for key, found in self.runs.items() if key[0] == workload}

    def unmeasured(self, workload):
        """Every schedule that was chosen or the best so far of a run, and is not measured again."""
        bests = dict.fromkeys(self.chosen[workload, *key] for key in self.of(workload))
        bests |= dict.fromkeys(s for found in self.of(workload).values() for _, _, s in improvements(found))
        return [s for s in bests if len(self.ratios.get(workload, {}).get(s, ())) < AGAIN]

    def _keep(self, entry):
        if "ratios" in entry:
            known = self.ratios.setdefault(entry["workload"], {})
            for schedule, ratio in entry["ratios"].items():
                known.setdefault(schedule, []).append(ratio)
        else:
            key = entry["workload"], entry["search"], entry["seed"], entry["seconds"]
            self.runs[key], self.chosen[key] = entry["found"], entry["chosen"]


def collect(runs, workloads, args, end):
    """Run what is missing, until `end`; whether all is there."""
    problem = workloads[0].problem
    Measurer().measure(problem, problem.start)  # what is imported and compiled once in a process is nobody's time
    for module in ("optuna", "xgboost"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    wanted = [*itertools.product(args.searches, args.seconds),
              *((f"{name} alone", 0) for name in args.searches if name in ALONE)]
    for number, workload in enumerate(workloads, 1):
        for seed, (name, seconds) in itertools.product(range(args.seeds), wanted):
            if (workload.name, name, seed, seconds) in runs.runs:
                continue
            if time.perf_counter() > end:
                return False
            found, winner = (searched(workload.problem, name, seed, seconds) if seconds
                             else alone(workload.problem, name.removesuffix(" alone"), seed))
            runs.add({"workload": workload.name, "search": name, "seed": seed, "seconds": seconds, "found": found,
                      "chosen": winner})
        while part := runs.unmeasured(workload.name)[:TURN]:
            if time.perf_counter() > end:
                return False
            runs.add({"workload": workload.name, "ratios": again(workload.problem, part)})
        print(f"{number} of {len(workloads)}: {workload.name}", flush=True)
    return True


def reached(runs, workload, had):
    """{search: [share of the best known, one a seed]} of what runs had; nothing known is the default.

    Parameters
    ----------
    runs : Runs
    workload : str
    had : callable
        ``had(key, found)`` is the schedule, None to leave the run out; key is (search, seed, seconds).
    """
    ratios = {s: r[:AGAIN] for s, r in runs.ratios[workload].items() if None not in r}
    best, out = ratios[min(ratios, key=lambda s: ratios[s][0])][-1], defaultdict(list)
    for key, found in runs.of(workload).items():
        schedule = had((workload, *key), found)
        if schedule is not None:
            out[key[0]].append(best / ratios[schedule][-1] if schedule in ratios else best)
    return out


def after_seconds(runs, seconds):
    """What runs of so many seconds chose, for `reached`."""
    return lambda key, found: runs.chosen[key] if key[-1] in (0, seconds) else None


def best_by(axis, limit, seconds):
    """The best after so many seconds (axis 0) or measurements (axis 1) of runs of so many seconds, for `reached`."""
    def had(key, found):
        if key[-1] not in (0, seconds):
            return None
        return next((s for *at, s in reversed(improvements(found)) if at[axis] <= limit or not key[-1]), "")
    return had


def means(runs, workloads, had):
    """{search: geometric mean over workloads of the median over seeds}; `had` as for `reached`."""
    shares = defaultdict(list)
    for workload in workloads:
        for name, found in reached(runs, workload, had).items():
            shares[name].append(statistics.median(found))
    return {name: statistics.geometric_mean(found) for name, found in shares.items()}


def report(runs, workloads, seconds):
    """Everything that the table has, by search; `seconds` are those of the runs."""
    longest = max(seconds)
    columns = {f"{s:g} s": means(runs, workloads, after_seconds(runs, s)) for s in seconds}
    columns |= {f"{n} measured": means(runs, workloads, best_by(1, n, longest)) for n in MEASUREMENTS}
    out = {name: {column: found[name] for column, found in columns.items()} for name in columns[f"{longest:g} s"]}
    for name, row in out.items():
        counts = [len(found) for (w, n, _, s), found in runs.runs.items()
                  if n == name and w in workloads and s == min(seconds)]
        row["measurements"] = statistics.median(counts) if counts else 0
    return out


def show(table, count, seeds):
    """Print the table in markdown, the best after the most seconds first."""
    columns = list(next(iter(table.values())))
    last = [c for c in columns if c.endswith(" s")][-1]
    print(f"\nShare of the best schedule known: {count} workloads, medians over {seeds} seeds, geometric means\n")
    print(f"| search | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, row in sorted(table.items(), key=lambda item: -item[1][last]):
        print(f"| {name} | {' | '.join(f'{v:.3f}' if c != 'measurements' else f'{v:.0f}' for c, v in row.items())} |")


def picture(runs, workloads, seconds, path):
    """Draw the best so far over time, a line for each search."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times = [0.1 * (seconds / 0.1) ** (i / 79) for i in range(80)]
    curves = [means(runs, workloads, best_by(0, t, seconds)) for t in times]
    names = sorted(curves[-1], key=lambda n: -curves[-1][n])
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for i, name in enumerate(names):
        thick, dashed = name.startswith("policy"), name.endswith(" alone") or name == "default"
        axes.plot(times, [c[name] for c in curves], "--" if dashed else "-", label=name, lw=3 if thick else 1.5,
                  color=pyplot.get_cmap("tab20")(i % COLOURS))
    axes.set(xscale="log", xlabel="seconds a workload, compiling and checking included",
             ylabel="share of the best schedule known", title=f"Best so far, {len(workloads)} held-out workloads")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", help="file of the runs, JSON lines; it is added to")
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave the first workloads out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, nargs="+", default=[2, 10], help="budgets of runs")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, metavar="NAME",
                        default=[name for name in SEARCHES if name not in LEAVE_OUT])
    parser.add_argument("--slice", type=float, default=math.inf, metavar="SECONDS", help="after which nothing is begun")
    parser.add_argument("--report", action="store_true", help="run nothing: report on the workloads that are complete")
    parser.add_argument("--json", metavar="FILE", help="also write the table and what each workload reached here")
    parser.add_argument("--picture", metavar="FILE", help="draw the best so far over time")
    args = parser.parse_args()
    runs = Runs(args.runs)
    workloads = chosen(published("test", target.current()), args.skip + args.workloads)[args.skip:]
    if not args.report and not collect(runs, workloads, args, time.perf_counter() + args.slice):
        raise SystemExit(f"not all runs are in {args.runs}: the same command goes on")
    done = [w.name for w in workloads if w.name in runs.ratios and not runs.unmeasured(w.name)]
    if not done:
        raise SystemExit(f"{args.runs} has no workload whose runs are all there: run without --report")
    table = report(runs, done, args.seconds)
    show(table, len(done), len({seed for _, _, seed, _ in runs.runs}))
    if args.json:
        each = {w: {f"{s:g}": reached(runs, w, after_seconds(runs, s)) for s in args.seconds} for w in done}
        measure.save(args.json, {"table": table, "workloads": each})
    if args.picture:
        picture(runs, done, max(args.seconds), args.picture)


if __name__ == "__main__":
    main()
