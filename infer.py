"""Find the boundaries of a whole volume with a trained checkpoint, see docs/inference.md:

python infer.py checkpoint=runs/x/final.safetensors input=stack.h5 output=boundary.h5
"""
import contextlib
import sys
import time

import models
from conf.entry import command
from data import Standardisation, Volume, standardised
from znn.pipeline import engine
from znn.pipeline.checkpoint import load_stages
from znn.pipeline.errors import Interrupted, NonFiniteMap
from znn.pipeline.interruption import watched
from znn.pipeline.memory import GB, peak_memory
from znn.pipeline.meter import Meter
from znn.pipeline.output import check_output, run_to_file
from znn.pipeline.partial import partial_path
from znn.pipeline.planning import plan
from znn.pipeline.prediction import (
    block_budget,
    check_finite,
    chosen_region,
    chosen_stages,
    origin,
    provenance,
    ready,
    resolution_warning,
    sha256,
)
from znn.pipeline.rate import rates


@command("infer")
def main(settings):
    """Check everything, compute block by block, say what was done; `settings` is a `conf.schema.Infer`."""
    started = time.perf_counter()
    engine.use(settings.engine.name, settings.engine.threads)
    inputs = (settings.input, settings.checkpoint)
    check_output(settings.output, settings.overwrite, inputs)
    raw = Volume.open(settings.input, settings.input_dataset)
    region = chosen_region(raw, settings)
    stages, meta = load_stages(settings.checkpoint, models.build)
    stages = chosen_stages(stages, settings)
    warning = resolution_warning(raw, meta)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    check_finite(raw)
    image = standardised(raw, Standardisation.from_dict(meta["normalisation"]))
    digest, scaling = sha256(settings.checkpoint), meta["recursion_scaling"]
    about = provenance(raw, settings, meta, stages, digest)
    stages = ready(stages, settings)
    pace = rates(stages)
    work = plan(stages, image, region, block_budget(settings), settings.tta, settings.stream and scaling == "fixed")
    with (stoppable(settings.output) as interruption, of_checkpoint(settings.checkpoint),
          Meter(work.voxels(image), work.seconds(image, pace)) as meter):
        result = run_to_file(
            work, image, settings.output, origin(raw, settings, digest), inputs=inputs,
            dataset=settings.output_dataset, attributes=about, uint8=settings.uint8, overwrite=settings.overwrite,
            resume=settings.resume, recursion_scaling=scaling, progress=meter, check=interruption.check)
    summarise(result, meter, settings, time.perf_counter() - started)


@contextlib.contextmanager
def stoppable(output):
    """Let SIGTERM and Ctrl-C stop the work before its next layer, with a message that says how to go on."""
    with watched() as interruption:
        try:
            yield interruption
        except Interrupted as request:
            kept = partial_path(output)
            rest = f"finished blocks are kept in {kept}: give the same command again to go on"
            raise Interrupted(f"{request}; {rest if kept.exists() else 'nothing was written'}") from None


@contextlib.contextmanager
def of_checkpoint(path):
    """Name the file whose weights made a map that is not finite."""
    try:
        yield
    except NonFiniteMap as error:
        raise NonFiniteMap(f"{path}: {error}") from error


def summarise(result, meter, settings, seconds):
    """Print what was written where, how fast, and with how much memory."""
    kept = f", {meter.kept:,} voxels kept from an earlier run" if meter.kept else ""
    print(f"written: {result.name}, {' x '.join(map(str, result.shape))} {result.dtype}{kept}")
    print(f"{meter.speeds()}; {seconds:.1f} s in all; "
          f"peak memory {peak_memory() / GB:.2f} GB of {settings.memory_budget_gb:g} GB")


if __name__ == "__main__":
    main()
