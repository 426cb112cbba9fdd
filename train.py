"""Train a recursive chain of networks on labelled stacks, see docs/training.md:

python train.py experiment=isbi2012_recursive data.root=../shared/em
python train.py experiment=finetune data.stacks.stack.path=stack.h5        # from trained weights
python train.py resume=runs/isbi2012_recursive
"""
import contextlib
import sys
from dataclasses import asdict
from pathlib import Path

import models
from conf.entry import command
from conf.stored import check_unchanged, store, take_back
from models import zoo
from znn.pipeline import engine
from znn.pipeline.errors import Interrupted, OutputExists, OutputNotWritable
from znn.pipeline.interruption import watched
from znn.pipeline.lock import locked
from znn.pipeline.memory import GB, peak_memory
from znn.pipeline.monitor import Monitor
from znn.pipeline.prediction import check_finite
from znn.pipeline.recursion import LAST, Recursion
from znn.pipeline.stacks import open_stacks


@command("train")
def main(settings):
    """Check everything, train stage by stage, say what was done; `settings` is a `conf.schema.Train`."""
    engine.use(settings.engine.name, settings.engine.threads)
    folder = Path(settings.resume or Path(settings.runs) / (settings.name or settings.experiment))
    if settings.resume:
        check_unchanged(settings)
    elif folder.exists() and not folder.is_dir():
        raise OutputExists(f"{folder}: expected a folder or nothing there, found a file; choose another name=")
    elif folder.exists() and any(folder.iterdir()):
        raise OutputExists(f"{folder}: there is a run already; go on with it by resume={folder}, "
                           "or give this one a name of its own: name=<another>")
    stacks = open_stacks(settings.data)
    for stack in stacks:
        check_finite(stack.raw)
    run = Recursion(folder, settings.stages, settings.data, stacks, models.build, models.transfer,
                    settings.seed, asdict(settings), settings.memory_budget_gb * GB,
                    settings.init and zoo.located(settings.init))
    with watched() as interruption, contextlib.ExitStack() as held:
        monitor = Monitor(interruption, tensorboard=settings.tensorboard)
        prepare(folder, settings, held)
        try:
            final = run.run(monitor, resume=bool(settings.resume))
        except Interrupted as request:
            kept = f"saved in {folder / LAST}; " if (folder / LAST).exists() else ""
            raise Interrupted(f"{request}; {kept}go on with: python train.py resume={folder}") from None
        except BaseException:
            if not settings.resume:
                take_back(folder)
            raise
        finally:
            monitor.close()
    for line in monitor.summary():
        print(line)
    print(f"written: {final} ({', '.join(settings.stages)}), with curve.csv, curve.png and previews beside it; "
          f"peak memory {peak_memory() / GB:.2f} GB")


def prepare(folder, settings, held):
    """Make the folder of a run, lock it as long as `held`, an ExitStack, is open, and put the settings there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        warning = held.enter_context(locked(folder))
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        store(settings, folder)
    except OSError as error:
        raise OutputNotWritable(f"{folder}: cannot write the run there ({error.strerror}); choose another place "
                                "with runs=<folder>") from error


if __name__ == "__main__":
    main()
