"""The file of an unfinished run: the maps that are kept and which of their blocks are done, safe against being killed.

::

    <output>.partial            attributes: format, about (JSON: checkpoint, input, settings)
      <pass>/<stage>/map        (Z, Y, X) float32
      <pass>/<stage>/done       a byte a block, in raster order; attribute cut (JSON: how the work is cut)

The stages are the last ones of their groups. There is a pass for each orientation that is averaged, 0, 1, ... The last
map of a pass is the sum of the passes so far; it takes the place of the last but one, which is needed no more, so there
are two of them however many passes.
All datasets are contiguous and allocated when the file is made, under another name. From then on only values change
and never the structure of the file, so a process that is killed at any moment leaves a file that opens. A block is
marked as done after its values have reached the disk.
"""
import errno
import json
import os
from pathlib import Path

import h5py
import numpy as np

from data.files import replacing
from znn.pipeline.errors import OutputNotWritable, PartialMismatch

FORMAT = "znn-partial-2"
BUDGET_SLACK = 1.25       # what the process holds varies a little from run to run; recorded blocks may exceed by this


def partial_path(output):
    """Where the unfinished form of an output is kept: beside it."""
    return Path(f"{output}.partial")


def recorded(output):
    """What the unfinished form of an output was begun with, the dict `about`; empty where there is none to be read."""
    path = partial_path(output)
    try:
        with h5py.File(path, "r", locking=False) as file:
            return json.loads(file.attrs["about"])
    except (OSError, KeyError, ValueError):
        return {}


class PartialFile:
    """A store for `inference.run` that goes on where an earlier run with the same `about` has stopped.

    Parameters
    ----------
    path : Path
    work : list of averaging.Pass
    about : dict
        JSON values that say what the maps are computed from; all of them must agree to go on.
    resume : bool
        False throws away what is there.

    Raises
    ------
    PartialMismatch
        If what is there was begun with another `about`, or is not a partial file.
    OutputNotWritable
        If the file cannot be made, or another process writes it.
    """

    known = ()

    def __init__(self, path, work, about, resume=True):
        self.path = Path(path)
        if not (resume and self.path.exists()):
            _make(self.path, work, about)
        self.file = _open(self.path)
        try:
            self._check(about)
        except PartialMismatch:
            self.file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Close; where the work failed before its first block was done, nothing is left behind."""
        empty = not any(group["done"][()].any() for group in self.file["0"].values())
        self.file.close()
        if error is not None and empty:
            self.path.unlink()

    def _check(self, about):
        found = self.file.attrs.get("about")
        if self.file.attrs.get("format") != FORMAT or found is None:
            raise PartialMismatch(f"{self.path}: expected a partial file of this program, found something else; "
                                  "move it away, or choose another output=")
        found, about = json.loads(found), json.loads(json.dumps(about))
        other = [f"{key}: expected {about.get(key)!r:.99}, found {found.get(key)!r:.99}"
                 for key in sorted({*found, *about}) if found.get(key) != about.get(key)]
        if other:
            raise PartialMismatch(f"{self.path}: an unfinished run is kept there that was begun otherwise: "
                                  f"{'; '.join(other)}. Run it with its own settings, or say resume=false to discard "
                                  "it")

    def kept(self, group, number=0, shape=None):
        """The map of a group in the pass of that number, with the blocks that are done already.

        The work is cut as recorded. Where that no longer fits the memory budget the map begins anew, cut smaller.
        """
        kept = self.file[f"{number}/{group.last.name}"]
        recorded = group.recut(json.loads(kept["done"].attrs["cut"]))
        if not kept["done"][()].all() and recorded.nbytes > BUDGET_SLACK * group.budget:
            del kept["done"]
            _add_done(kept, group)
            self.file.flush()
        return PartialMap(self.path, kept)


class PartialMap:
    """A map on disk; see `inference.MemoryMap`."""

    def __init__(self, path, kept):
        self.path, self.values, self._marks = path, kept["map"], kept["done"]
        self.cut = json.loads(self._marks.attrs["cut"])
        self.done = self._marks[()].astype(bool)

    def put(self, index, roi, values):
        """Write a block, and then that it is done."""
        try:
            self.values[roi.slices] = values
            self._flush()
            self._marks[index] = 1
            self._marks.file.flush()
        except OSError as error:
            raise OutputNotWritable(f"{self.path}: writing failed ({error}); the blocks before are kept: make space, "
                                    "then give the same command again") from error
        self.done[index] = True

    def _flush(self):
        file = self._marks.file
        file.flush()
        os.fsync(file.id.get_vfd_handle())


def _make(path, work, about):
    try:
        with replacing(path) as temporary, h5py.File(temporary, "w") as file:
            for number, each in enumerate(work):
                for group in each.groups:
                    kept = file.create_group(f"{number}/{group.last.name}")
                    _add_done(kept, group)
                    if group is not each.groups[-1]:
                        _allocated(kept, "map", group.last.region.shape, np.float32)
                    elif number < 2:
                        _allocated(kept, "map", work[0].groups[-1].last.region.shape, np.float32)
                    else:
                        kept["map"] = file[f"{number - 2}/{group.last.name}/map"]
            file.attrs.update({"format": FORMAT, "about": json.dumps(about)})
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot write here ({error}); check that the folder may be written to and "
                                "has space") from error


def _add_done(kept, group):
    marks = _allocated(kept, "done", (len(group.last.blocks()),), np.uint8)
    marks.attrs["cut"] = json.dumps(group.cut)


def _allocated(group, name, shape, dtype):
    """A contiguous dataset of zeros that has its place in the file from the start."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    if dtype == np.float32:
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    identifier = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)),
                                 h5py.h5s.create_simple(shape), properties)
    return h5py.Dataset(identifier)


def _open(path):
    try:
        if path.stat().st_size == 0:
            raise OSError("it is empty")          # HDF5 would make a file of it
        return h5py.File(path, "r+")
    except OSError as error:
        failure = error
    if failure.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
        raise OutputNotWritable(f"{path}: another process is writing this map; wait until it has finished, "
                                "or choose another output=") from failure
    if "lock" in str(failure):
        try:
            return h5py.File(path, "r+", locking=False)      # a file system that knows no locks
        except OSError as error:
            failure = error
    raise PartialMismatch(f"{path}: expected a partial file of this program, found one that cannot be opened "
                          f"({failure}); move it away, or say resume=false to discard it") from failure
