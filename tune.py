"""Find fast schedules for the kernels of a network, on this processor, see docs/tuning.md:

python tune.py model=vd2d3d
"""
import contextlib
import math
import os
import shlex
import signal
import sys
from dataclasses import replace

import numba
from tqdm import tqdm

import models
from conf.entry import GROUPS, command
from znn.codegen import target
from znn.nn import layers
from znn.pipeline import engine
from znn.pipeline.errors import Interrupted
from znn.pipeline.interruption import watched
from znn.runtime import database, exchange
from znn.runtime.cache import generator
from znn.runtime.layer import PASSES
from znn.tuner import report
from znn.tuner.errors import TuningError, one_of
from znn.tuner.tuning import Effort, kernels, stored, tune, tuned
from znn.tuner.workloads import of_network


@command("tune")
def main(settings):
    """Exchange or show what is stored, else tune; `settings` is a `conf.schema.Tune`."""
    with explained():
        if not database.file():
            raise TuningError(f"ZNN_SCHEDULES={os.environ['ZNN_SCHEDULES']} switches the database of schedules off: "
                              "unset it, or let it name a file")
        if settings.import_from:
            taken, left_out = exchange.import_text(settings.import_from)
            note(left_out, f"not taken over from {settings.import_from}")
            print(f"taken over from {settings.import_from}: {taken} schedules that are better than what was there; "
                  f"{database.file()} has {len(exchange.entries())}")
        if settings.export_to or not (settings.import_from or settings.list):
            note(exchange.prune(), f"dropped from {database.file()}")
        if settings.export_to:
            print(f"written: {settings.export_to}, {exchange.export_text(settings.export_to)} schedules")
        if settings.list:
            print(listing(exchange.entries()))
        if not (settings.import_from or settings.export_to or settings.list):
            run(settings)


def run(settings):
    """Tune what is not tuned yet, and say what came of it."""
    engine.use("znn", settings.threads)
    asked, (name, about) = kernels(of_network(convolutions(settings), target.current())), description(settings)
    total = math.inf if settings.total_seconds is None else settings.total_seconds
    effort = Effort(settings.mode, settings.search, settings.seconds, total, settings.again, settings.seed)
    folder = settings.report and f"{settings.report}/{settings.name or name}"
    with database.writing():  # better now than after minutes
        pass
    left = [w for w in asked if effort.again or not tuned(w.problem, measured=effort.mode != "policy")]
    outcomes = {} if effort.again or not folder else still_true(report.earlier(folder, about), asked, left)
    print(f"{about['title']}: {len(asked)} kernels, {len(asked) - len(left)} of them tuned already")
    done = 0
    with watched() as interruption, tqdm(total=len(left), unit="kernel", disable=not left, dynamic_ncols=True) as bar:
        for outcome in tune(left, effort, lambda: interruption.signal is not None):
            outcomes[outcome.contraction], done = outcome, done + 1
            bar.set_postfix_str(outcome.name)
            bar.update()
    summarise(outcomes, folder, about, len(asked))
    if interruption.signal:
        raise Interrupted(f"stopped by {signal.Signals(interruption.signal).name}; {done} of {len(left)} kernels "
                          f"were tuned and are stored in {database.file()}; go on with: "
                          f"python tune.py {shlex.join(sys.argv[1:])}")
    if done < len(left):
        print(f"time is over: {len(left) - done} kernels are not tuned yet; give the same command again to go on")


def convolutions(settings):
    """What the network is made of, and VD2D, if it reads the map of another; list of Layer."""
    if settings.model is None:
        choices = ", ".join(sorted(path.stem for path in (GROUPS / "model").glob("*.yaml")))
        raise TuningError(f"no value for model: give it as model=vd2d3d (there are: {choices})")
    if len(settings.output) != 3 or min(settings.output) < 1:
        raise TuningError(f"output: expected three numbers of voxels [z,y,x] above 0, found {settings.output}")
    if not settings.passes:
        raise TuningError(f"passes: expected some of {', '.join(PASSES)}, found none")
    for which in settings.passes:
        one_of("passes", which, PASSES)
    nets = [models.build(settings.model.name, settings.model.options)]
    if nets[0].in_channels == 2:
        nets.insert(0, models.build("VD2D", {"activation": settings.model.options.get("activation", "relu")}))
    found = []
    for net in nets:
        held = (n + f - 1 for n, f in zip(settings.output, net.field_of_view))
        stage = f"{type(net).__name__} " if len(nets) > 1 else ""
        found += [replace(layer, name=stage + layer.name, passes=tuple(p for p in layer.passes if p in settings.passes))
                  for layer in layers(net, (1, net.in_channels, *held))]
    return found


def description(settings):
    """A name for the folder of the report, and what its numbers depend on."""
    options = settings.model.options
    kind = "".join(f"_{word}" for word, there in (("recursive", options.get("recursive")),
                                                  ("tanh", options.get("activation") == "tanh")) if there)
    network, extent = f"{settings.model.name.lower()}{kind}", "x".join(map(str, settings.output))
    where, threads = target.current(), numba.get_num_threads()
    return f"{network}_{extent}", {
        "title": f"{network}, output {extent}, {threads} thread{'s' * (threads > 1)}, {where.name}",
        "model": settings.model.name, "options": options, "output": settings.output, "target": where.name,
        "processor": database.processor(), "threads": threads, "generator": generator()}


def still_true(earlier, asked, left):
    """Of an earlier report's outcomes those whose schedules are what is stored, without what is tuned now."""
    return {text: earlier[text] for w in asked if w not in left
            if (text := database.text(w.problem.contraction)) in earlier
            and earlier[text].schedule == stored(w.problem).schedule}


def summarise(outcomes, folder, about, asked):
    """Print the table, and write the report."""
    outcomes = list(outcomes.values())
    if outcomes:
        print(report.table(outcomes))
    if len(outcomes) < asked:
        print(f"{asked - len(outcomes)} kernels are not in this table: not tuned, or tuned elsewhere")
    print(f"schedules: {database.file()}")
    if folder and outcomes:
        print(f"written: {', '.join(map(str, report.write(folder, outcomes, about)))}")


def listing(entries):
    """The entries as text, one a line."""
    rows = [("contraction", "type", "target", "processor", "ms", "by", "generator")]
    for e in entries:
        rows.append((e.contraction.split(";")[0], e.dtype, e.target, e.processor,
                     f"{1e3 * e.seconds:.4g}" if e.seconds < math.inf else "not measured", e.source,
                     "this one" if e.generator == generator() else f"another, {e.generator[:8]}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, f"{len(entries)} schedules in {database.file()}"])


def note(left_out, what):
    """Name entries that are of no use."""
    for entry, reason in left_out:
        print(f"{what}: the schedule {entry.schedule!r} of {entry.contraction.split(';')[0]} ({entry.target}, "
              f"{entry.processor}): {reason}", file=sys.stderr)


@contextlib.contextmanager
def explained():
    """What the user can mend, as an error that a command prints in a line."""
    try:
        yield
    except MemoryError as error:
        raise TuningError("too little memory for the operands of a kernel; choose a smaller output=[z,y,x]") from error
    except ModuleNotFoundError as error:
        raise TuningError(f"this search needs {error.name}, of the extra `tune`: "
                          "pip install '.[tune]'") from error
    except OSError as error:
        raise TuningError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except ValueError as error:
        if type(error) is ValueError:
            raise TuningError(str(error)) from error
        raise


if __name__ == "__main__":
    main()
