"""From the settings of infer.py to what is computed, where the result comes from, and what is worth a warning."""
import functools
import hashlib
import json
import os
from dataclasses import asdict, dataclass

import numpy as np
from tqdm import tqdm

from data.roi import Roi, blocks
from znn import __version__, nn
from znn.graph.compiled import compile, has_instruction
from znn.pipeline.averaging import AVERAGES
from znn.pipeline.calibration import Calibration, calibrate
from znn.pipeline.errors import BudgetTooSmall, CheckpointError, UndefinedVolume, WrongSetting, not_negative, one_of
from znn.pipeline.inference import warm_up
from znn.pipeline.memory import GB, memory_now
from znn.pipeline.output import BOUNDARY
from znn.pipeline.partial import recorded

RESOLUTION_TOLERANCE = 0.02
PRECISIONS = ("fp32", "bf16", "int8")
SLAB = (8, 1024, 1024)   # voxels read at a time


@dataclass
class InferenceSettings:
    """What is computed from what, and where it goes.

    Attributes
    ----------
    checkpoint : str
        File that train.py wrote, with one stage or more.
    input, output : str
        HDF5 files; the output must not be there yet, and its folder must.
    input_dataset, output_dataset : str
        Grey values (Z, Y, X) inside `input`; the map inside `output`.
    z_range, y_range, x_range : [first, last + 1], optional
        Voxels of the input to compute; their context still comes from the whole input.  Absent: all.
    last_stage : str, optional
        End with the map of this stage of the checkpoint.  Absent: its last one.
    uint8 : bool
        Store ``round(255 p)``, with the attribute `scale`, in place of float32.
    overwrite : bool
        Replace an existing output.
    resume : bool
        Go on with an unfinished run; false discards it.
    memory_budget_gb : float
        Main memory that the whole program may take; blocks are made to fit.
    compiled : bool
        Run networks as `znn.compile` makes them; false walks through their layers, as plain PyTorch always does.
    precision : str
        Of compiled networks, a key of `PRECISIONS`.
    averaging : int
        Over how many orientations of the volume maps are averaged, one of `averaging.AVERAGES`: 8 are the flips and
        the transpose of the sections, 16 these with z flipped too. It takes so many times as long.
    int8_tolerance : float
        With precision int8: how much the map may differ from that in float32, on average over sampled blocks.
    """

    checkpoint: str
    input: str
    output: str
    input_dataset: str = "volumes/raw"
    output_dataset: str = BOUNDARY
    z_range: list[int] | None = None
    y_range: list[int] | None = None
    x_range: list[int] | None = None
    last_stage: str | None = None
    uint8: bool = False
    overwrite: bool = False
    resume: bool = True
    memory_budget_gb: float = 2.0
    compiled: bool = True
    precision: str = "fp32"
    averaging: int = 1
    int8_tolerance: float = 0.01

    def __post_init__(self):
        one_of("averaging", self.averaging, AVERAGES)
        one_of("precision", self.precision, PRECISIONS)
        not_negative("int8_tolerance", self.int8_tolerance)
        if not all(part.strip() not in ("", ".", "..") for part in self.output_dataset.strip("/").split("/")):
            raise WrongSetting(f"output_dataset: expected a path inside the file, such as {BOUNDARY}, "
                               f"found {self.output_dataset!r}")


def chosen_region(volume, settings):
    """The region of `volume` that the ranges of the settings name.

    Raises
    ------
    UndefinedVolume
    """
    ranges = [settings.z_range, settings.y_range, settings.x_range]
    for axis, size, chosen in zip("zyx", volume.shape, ranges):
        if chosen is not None and not (len(chosen) == 2 and 0 <= chosen[0] < chosen[1] <= size):
            raise UndefinedVolume(f"{volume.name}: {axis}_range: expected [first, last + 1] within 0..{size}, "
                                  f"found {list(chosen)}")
    pairs = [chosen or (0, size) for size, chosen in zip(volume.shape, ranges)]
    return Roi.between(*zip(*pairs))


def chosen_stages(stages, settings):
    """The (name, network) pairs up to the one that `last_stage` names.

    Raises
    ------
    CheckpointError
    """
    names = [name for name, _ in stages]
    if settings.last_stage is None:
        return stages
    if settings.last_stage not in names:
        raise CheckpointError(f"{settings.checkpoint}: expected last_stage to be one of {', '.join(names)}, "
                              f"found {settings.last_stage!r}")
    return stages[:names.index(settings.last_stage) + 1]


def block_budget(networks, settings):
    """Bytes that blocks may take: the memory budget less what the program holds with its kernels compiled.

    Raises
    ------
    BudgetTooSmall
    """
    warm_up(networks)
    held = memory_now()
    if settings.memory_budget_gb * GB <= held:
        raise BudgetTooSmall(f"memory_budget_gb: found {settings.memory_budget_gb:g}, but the program itself holds "
                             f"{held / GB:.2f} GB before any block; give at least {held / GB + 0.5:.1f}")
    return settings.memory_budget_gb * GB - held


def calibration(settings, stages, image, region, budget, recursion_scaling, between):
    """What networks in integers need to know; None where none are asked for.

    An unfinished run goes on with what it has begun with.

    Parameters
    ----------
    settings : InferenceSettings
    stages, image, region, recursion_scaling, between
        As for `calibration.calibrate`.
    budget : float
        Bytes that a block may take.

    Raises
    ------
    PrecisionLost
        If the map differs from that in float32 by more than the settings allow.
    """
    if settings.precision != "int8" or not _compiles(settings):
        return None
    kept = recorded(settings.output).get("int8") if settings.resume else None
    if kept is not None:
        return Calibration(**kept)
    found = calibrate(stages, image, region, budget, recursion_scaling, between)
    found.check(settings.int8_tolerance)
    return found


def preparation(settings, between, stages=(), calibrated=None):
    """What makes a callable of a network for the engine at hand, None for the network itself.

    Parameters
    ----------
    settings : InferenceSettings
    between : callable
        Called before each kernel of a compiled network.
    stages : sequence of (str, Module)
        All networks.
    calibrated : Calibration, optional
        Of these networks, where they are to be in integers.

    Raises
    ------
    WrongSetting
        If a precision is asked for that only compiled networks have, and they are not compiled.
    """
    if not _compiles(settings):
        if settings.precision != PRECISIONS[0]:
            raise WrongSetting(f"precision: expected {PRECISIONS[0]} where networks are not compiled, found "
                               f"{settings.precision}: leave compiled=true and engine=znn, or the precision away")
        return None
    if calibrated is not None:
        names = {network: name for name, network in stages}
        return lambda network: calibrated.compiled(names[network], network, between)
    return lambda network: functools.partial(compile(network, settings.precision), between=between)


def _compiles(settings):
    return settings.compiled and nn.current_engine() == "znn"


def origin(volume, settings, checkpoint_sha256, calibrated=None):
    """What a map is computed from, for telling whether an unfinished one may be gone on with: a dict for JSON.

    The input is known by its size and time of change: hashing terabytes would take longer than computing the map.
    """
    state = os.stat(settings.input)
    return {
        "version": __version__, "engine": nn.current_engine(), "compiled": _compiles(settings),
        "precision": settings.precision,
        "checkpoint_sha256": checkpoint_sha256, "input_dataset": settings.input_dataset,
        "input_shape": list(volume.shape), "input_dtype": str(volume.dtype),
        "input_bytes": state.st_size, "input_changed_ns": state.st_mtime_ns,
    } | _of_calibration(calibrated)


def _of_calibration(calibrated):
    return {} if calibrated is None else {"int8": calibrated.recorded()}


def provenance(volume, settings, meta, stages, checkpoint_sha256, calibrated=None):
    """Attributes of the finished map that say where it comes from; `stages` are those that were run."""
    ran = [stage for stage in meta["stages"] if stage["name"] in dict(stages)]
    return {
        "source": volume.name, "checkpoint": str(settings.checkpoint), "checkpoint_sha256": checkpoint_sha256,
        "version": __version__, "engine": nn.current_engine(), "normalisation": json.dumps(meta["normalisation"]),
        "recursion_scaling": meta["recursion_scaling"], "stages": json.dumps(ran),
        "averaging": settings.averaging,
        "config": json.dumps(asdict(settings), default=str), "training_config": json.dumps(meta.get("config", {})),
    } | ({} if meta.get("threshold") is None or ran != meta["stages"] else {"threshold": meta["threshold"]}) | {
        key: json.dumps(value) for key, value in _of_calibration(calibrated).items()}


def check_finite(volume):
    """Read all of a volume of floats once, with a bar, so that NaN is found before hours of work and not during them.

    Raises
    ------
    data.errors.NotFinite
    """
    if volume.dtype.kind != "f":
        return
    with tqdm(total=volume.roi.size, desc=f"looking for NaN in {volume.name}", unit="voxel", unit_scale=True,
              dynamic_ncols=True, leave=False) as bar:
        for block in blocks(volume.roi, SLAB):
            volume.read(block.write)
            bar.update(block.write.size)


def resolution_warning(volume, meta):
    """A sentence when the volume's voxels are not of the size that the network was trained on, else None."""
    trained = meta.get("resolution_zyx")
    if trained is None:
        return None
    size = " x ".join(f"{r:g}" for r in trained)
    if not volume.resolution_known:
        return (f"{volume.name} does not say its resolution (attribute 'resolution', nm, zyx); "
                f"the network was trained at {size} nm")
    if np.allclose(volume.resolution_zyx, trained, rtol=RESOLUTION_TOLERANCE):
        return None
    return (f"{volume.name} has voxels of {' x '.join(f'{r:g}' for r in volume.resolution_zyx)} nm (z, y, x), the "
            f"network was trained at {size} nm; expect a poor map, or resample the volume first")


def precision_warning(settings):
    """A sentence when the processor has no instruction for the precision that is asked for, else None."""
    if has_instruction(settings.precision):
        return None
    return (f"this processor has no instruction for precision={settings.precision}, which is no faster on it than "
            f"{PRECISIONS[0]}")


def sha256(path):
    """Hexadecimal digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
