"""Boundary maps in HDF5 files: what may be written where, the finished file, and inference from a volume to a file."""
import os
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np

from data.files import replacing
from data.roi import Roi, blocks
from data.volume import Volume
from data.writing import CHUNK
from znn.pipeline.averaging import passes
from znn.pipeline.errors import OutputExists, OutputNotWritable
from znn.pipeline.inference import run
from znn.pipeline.memory import GB
from znn.pipeline.partial import PartialFile, partial_path

BOUNDARY = "volumes/predictions/boundary"
MEANING = "probability of boundary: 1 = membrane, 0 = inside a cell"
COPY_SHAPE = tuple(n * m for n, m in zip(CHUNK, (1, 4, 4)))   # whole chunks, some 30 MB at a time
GZIP_LEVEL = 3
UINT8_SCALE = 1 / 255


def check_output(path, overwrite=False, inputs=()):
    """Make sure, before any work, that a file may be written, and that it is none of those it is computed from.

    Parameters
    ----------
    path : str or Path
    overwrite : bool
        Allows another existing file to be replaced, never an input.
    inputs : sequence of path
        Recognised under any name: through symbolic and hard links too.

    Raises
    ------
    OutputExists, OutputNotWritable
    """
    path = Path(path)
    for place in (path, partial_path(path)):
        for source in inputs:
            if place.exists() and os.path.exists(source) and os.path.samefile(place, source):
                raise OutputExists(f"{place}: this is the input {source} itself; choose another output=")
    if path.is_dir():
        raise OutputNotWritable(f"{path}: expected the name of a file, found a folder; "
                                f"say output={path / 'boundary.h5'}")
    if path.exists() and not overwrite:
        raise OutputExists(f"{path}: exists already; choose another output=, or say overwrite=true")
    if not path.parent.is_dir():
        raise OutputNotWritable(f"{path}: the folder {path.parent} does not exist; make it, or choose another output=")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputNotWritable(f"{path}: no permission to write in {path.parent}; choose another output=")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OutputNotWritable(f"{path}: no file can be made in {path.parent} ({error.strerror}); choose another "
                                "output=") from error


def check_space(path, work, itemsize):
    """Make sure that all maps and the finished file fit the disk, less what a partial file holds already.

    Raises
    ------
    OutputNotWritable
    """
    held = partial_path(path)
    held_bytes = held.stat().st_blocks * 512 if held.exists() else 0
    kept = [group.last.region.size for group in work[0].groups]
    need = 4 * (len(work) * sum(kept[:-1]) + min(2, len(work)) * kept[-1])
    need = max(0, need - held_bytes) + kept[-1] * itemsize
    free = shutil.disk_usage(Path(path).parent).free
    if need > free:
        raise OutputNotWritable(f"{path}: needs {need / GB:.3g} GB of disk for the map while it is computed and the "
                                f"finished file, found {free / GB:.3g} GB free; make space, or choose another output=")


def infer_to_file(networks, image, path, about, *, inputs=(), dataset=BOUNDARY, attributes=None, region=None,
                  uint8=False, overwrite=False, resume=True, memory_budget=GB, recursion_scaling="fixed",
                  progress=None, prepare=None, averaging=1):
    """The boundary map of a volume as a file; a run that was killed goes on where it was, to the same file.

    Parameters
    ----------
    networks, image, region, memory_budget, recursion_scaling, progress, prepare, averaging
        See `inference.infer_volume`.
    path : str or Path
    about : dict
        JSON values that identify networks and image; what is kept of an earlier run must agree in all of them.
        Region, scaling and averaging are added here.
    inputs : sequence of path
        Files that must not be written over.
    dataset : str
        Inside the file.
    attributes : dict, optional
        Of the dataset, beside resolution, offset, axes and meaning.
    uint8 : bool
        Store ``round(255 p)`` and the attribute ``scale`` = 1/255, in place of float32.
    overwrite, resume : bool
        Replace an existing output; go on with an unfinished run.

    Returns
    -------
    Volume
        The finished map.

    Raises
    ------
    OutputExists, OutputNotWritable, PartialMismatch, and those of `inference.infer_volume`
    """
    check_output(path, overwrite, inputs)
    work = passes(networks, image, region, averaging, memory_budget=memory_budget, recursion_scaling=recursion_scaling)
    check_space(path, work, 1 if uint8 else 4)
    chain = [stage for group in work[0].groups for stage in group.stages]
    last, region = chain[-1], chain[-1].region
    about = dict(about) | {"stages": [stage.name for stage in chain], "recursion_scaling": recursion_scaling,
                           "averaging": averaging, "region": [list(region.begin), list(region.end)]}
    with PartialFile(partial_path(path), work, about, resume) as partial:
        result = run(work, image, partial, recursion_scaling, progress, prepare)
        cut = partial.kept(work[0].groups[-1]).cut
        shape_notes = {"block_shape": cut["blocks"][last.name], "context": np.array(last.context)}
        write_map(path, dataset, result, uint8, shape_notes | dict(attributes or {}))
    partial_path(path).unlink()
    return Volume.open(path, dataset)


def write_map(path, dataset, volume, uint8=False, attributes=None):
    """Write a boundary map under a temporary name, piece by piece, then rename it.

    Parameters
    ----------
    path : str or Path
        Replaced when it exists.
    dataset : str
    volume : Volume
        Probabilities, float32.
    uint8 : bool
        See `infer_to_file`.
    attributes : dict, optional
    """
    path = Path(path)
    try:
        with replacing(path, durable=True) as temporary, h5py.File(temporary, "w") as file:
            _fill(file, dataset, volume, uint8).attrs.update(_attributes(volume, uint8) | dict(attributes or {}))
    except (OSError, RuntimeError, TypeError) as error:  # h5py raises all three
        raise OutputNotWritable(f"{path}: cannot write {dataset} here ({error}); check that the folder may be "
                                "written to and has space") from error


def _fill(file, dataset, volume, uint8):
    dtype = np.uint8 if uint8 else np.float32
    chunks = tuple(min(c, n) for c, n in zip(CHUNK, volume.shape))
    item = file.create_dataset(dataset, volume.shape, dtype, chunks=chunks, compression="gzip",
                               compression_opts=GZIP_LEVEL, shuffle=not uint8)
    for block in blocks(Roi((0, 0, 0), volume.shape), COPY_SHAPE):
        values = volume.read(block.write)
        item[block.write.slices] = np.rint(values / UINT8_SCALE).astype(np.uint8) if uint8 else values
    return item


def _attributes(volume, uint8):
    """What a reader needs to place the map and to read its values; an unknown resolution is not made up."""
    about = {"offset": np.asarray(volume.offset_zyx, float), "axes": "zyx", "meaning": MEANING}
    if volume.resolution_known:
        about["resolution"] = np.asarray(volume.resolution_zyx, float)
    return about | ({"scale": UINT8_SCALE} if uint8 else {})
