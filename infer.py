"""Find the boundaries of a whole volume with a trained checkpoint, see docs/inference.md:

python infer.py checkpoint=runs/x/final.safetensors input=stack.h5 output=boundary.h5
python infer.py checkpoint=zoo/isbi2012_vd2d3d input=stack.h5 output=boundary.h5        # trained already
"""
import contextlib
import dataclasses
import sys
import time

from torch.nn.modules.module import register_module_forward_pre_hook

import models
from conf.entry import command
from data import Standardisation, Volume, standardised
from models import zoo
from znn.pipeline import engine
from znn.pipeline.averaging import passes, written
from znn.pipeline.checkpoint import load_stages
from znn.pipeline.errors import Interrupted, NonFiniteMap
from znn.pipeline.interruption import watched
from znn.pipeline.memory import GB, peak_memory, return_freed
from znn.pipeline.meter import Meter
from znn.pipeline.output import check_output, infer_to_file
from znn.pipeline.partial import partial_path
from znn.pipeline.prediction import (
    block_budget,
    calibration,
    check_finite,
    chosen_region,
    chosen_stages,
    origin,
    precision_warning,
    preparation,
    provenance,
    resolution_warning,
    sha256,
)


@command("infer")
def main(settings):
    """Check everything, compute block by block, say what was done; `settings` is a `conf.schema.Infer`."""
    started = time.perf_counter()
    return_freed()
    settings = dataclasses.replace(settings, checkpoint=zoo.located(settings.checkpoint))
    engine.use(settings.engine.name, settings.engine.threads)
    inputs = (settings.input, settings.checkpoint)
    check_output(settings.output, settings.overwrite, inputs)
    raw = Volume.open(settings.input, settings.input_dataset)
    region = chosen_region(raw, settings)
    stages, meta = load_stages(settings.checkpoint, models.build)
    stages = chosen_stages(stages, settings)
    for warning in filter(None, (resolution_warning(raw, meta), precision_warning(settings))):
        print(f"warning: {warning}", file=sys.stderr)
    check_finite(raw)
    image = standardised(raw, Standardisation.from_dict(meta["normalisation"]))
    digest = sha256(settings.checkpoint)
    budget = block_budget(stages, settings)
    work = passes(stages, image, region, settings.averaging, memory_budget=budget,
                  recursion_scaling=meta["recursion_scaling"])
    with stoppable(settings.output) as interruption, of_checkpoint(settings.checkpoint):
        calibrated = calibration(settings, stages, image, region, budget, meta["recursion_scaling"],
                                 interruption.check)
        if calibrated:
            print(calibrated)
        with Meter(written(work)) as meter:
            result = infer_to_file(
                stages, image, settings.output, origin(raw, settings, digest, calibrated), inputs=inputs,
                dataset=settings.output_dataset, region=region, uint8=settings.uint8, overwrite=settings.overwrite,
                attributes=provenance(raw, settings, meta, stages, digest, calibrated), resume=settings.resume,
                memory_budget=budget, recursion_scaling=meta["recursion_scaling"], progress=meter,
                prepare=preparation(settings, interruption.check, stages, calibrated), averaging=settings.averaging)
    summarise(result, meter, settings, time.perf_counter() - started)


@contextlib.contextmanager
def stoppable(output):
    """Let SIGTERM and Ctrl-C stop the work before its next layer, with a message that says how to go on."""
    with watched() as interruption:
        hook = register_module_forward_pre_hook(lambda layer, arguments: interruption.check())
        try:
            yield interruption
        except Interrupted as request:
            kept = partial_path(output)
            rest = f"finished blocks are kept in {kept}: give the same command again to go on"
            raise Interrupted(f"{request}; {rest if kept.exists() else 'nothing was written'}") from None
        finally:
            hook.remove()


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
