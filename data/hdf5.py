"""HDF5 at the edge: opening (locks, missing things, filters) and a dataset that is read lazily in any process."""
import difflib
import errno
import math
import os
import warnings
from pathlib import Path

import h5py
import numpy as np

from data.errors import (
    EmptyVolume,
    LockedFile,
    MissingDataset,
    MissingFile,
    MissingFilter,
    UnreadableFile,
    WrongMetadata,
    WrongRank,
    WrongType,
)

CHUNK_CACHE_BYTES = 32 << 20
LARGE_CHUNK_BYTES = 64 << 20
FILTER_PACKAGES = {32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2"}


def open_file(path):
    """Open an HDF5 file for reading; also where the file system cannot lock.

    A lock that another process holds for writing is respected; a file system that knows no locks (many network
    file systems) is read without.

    Raises
    ------
    MissingFile, UnreadableFile, LockedFile
    """
    if not os.path.isfile(path):
        raise MissingFile(_missing_file(Path(path)))
    try:
        return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE_BYTES)
    except OSError as error:
        if "unable to lock" not in str(error):
            raise UnreadableFile(_unreadable(path, error)) from error
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            raise LockedFile(f"{path}: another process has this file open for writing; "
                             "wait until it has finished") from error
    try:
        return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE_BYTES, locking=False)
    except OSError as error:
        raise LockedFile(f"{path}: the file system cannot lock this file and reading it without a lock failed too "
                         f"({error}); set HDF5_USE_FILE_LOCKING=FALSE or copy the file to a local disk") from error


def _missing_file(path):
    folder = path.parent
    if not folder.is_dir():
        return f"{path}: no such file, and its folder {folder.absolute()} does not exist either"
    near = difflib.get_close_matches(path.name, [p.name for p in folder.iterdir() if p.is_file()], cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; relative paths start at {Path.cwd()}"
    return f"{path}: no such file{hint}"


def _unreadable(path, error):
    if isinstance(error, PermissionError) or error.errno == errno.EACCES:
        return f"{path}: no permission to read this file"
    if "truncated" in str(error):
        return f"{path}: the HDF5 file is truncated, probably because its writer was killed; write it again"
    return f"{path}: expected an HDF5 file, found something else ({error}); convert the data to HDF5 first"


def list_datasets(file):
    """Every dataset of an open file as {path: (shape, dtype)}, in the order of the file."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = (item.shape, item.dtype)

    file.visititems(visit)
    return found


def find_dataset(file, path, dataset):
    """The dataset, or a `MissingDataset` that lists what the file has, nearest names first.

    `path` is the file's name as the user gave it, for the message.
    """
    item = file.get(dataset)
    if isinstance(item, h5py.Dataset):
        return item
    found = list_datasets(file)
    what = "is a group, not a dataset" if isinstance(item, h5py.Group) else "no such dataset"
    near = difflib.get_close_matches(dataset.strip("/"), found, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    listing = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in found.items()) or "none at all"
    raise MissingDataset(f"{path}:{dataset}: {what}; {hint}The file has: {listing}")


def check_filters(item, name):
    """Raise `MissingFilter` when the dataset's compression cannot be undone here; loads hdf5plugin when it can help."""
    properties = item.id.get_create_plist()
    codes = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    missing = [code for code in codes if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    try:
        import hdf5plugin  # noqa: F401  (importing it registers the filters)
    except ImportError:
        pass
    for code in missing:
        if not h5py.h5z.filter_avail(code):
            known = f" ({FILTER_PACKAGES[code]})" if code in FILTER_PACKAGES else ""
            raise MissingFilter(f"{name}: compressed with HDF5 filter {code}{known}, which is not installed; "
                                "pip install hdf5plugin, or repack the file: h5repack -f GZIP=4 in.h5 out.h5")


class LazyDataset:
    """One dataset of one file, sliceable like an array; opens the file when first read in each process.

    A handle is never used in another process than the one which opened it, and never pickled.

    Parameters
    ----------
    path : str or Path
    dataset : str
        Path inside the file.

    Attributes
    ----------
    shape, dtype, chunks, attributes
        As stored; `attributes` is a plain dict.
    """

    def __init__(self, path, dataset):
        self.path, self.dataset = os.path.abspath(path), str(dataset)
        self.name = f"{path}:{dataset}"
        self._handle, self._owner = None, None
        with open_file(path) as file:
            item = find_dataset(file, path, self.dataset)
            self.shape, self.dtype, self.chunks = item.shape, item.dtype, item.chunks
            self.attributes = dict(item.attrs)
            check_volume(self.shape, self.dtype, self.name)
            check_filters(item, self.name)
            self._probe(item)
            warn_of_storage(item, self.name)

    def _probe(self, item):
        try:
            item[0, 0, 0]
        except OSError as error:
            raise UnreadableFile(f"{self.name}: the values cannot be read ({error}); the file is damaged") from error

    def _item(self):
        if self._handle is None or self._owner != os.getpid():
            self._handle, self._owner = open_file(self.path), os.getpid()
        return self._handle[self.dataset]

    def __getitem__(self, slices):
        try:
            return self._item()[slices]
        except OSError as error:
            raise UnreadableFile(f"{self.name}: reading {slices} failed ({error}); the file is damaged "
                                 "or was changed while in use") from error

    def __getstate__(self):
        return self.__dict__ | {"_handle": None, "_owner": None}


def check_volume(shape, dtype, name):
    """Raise unless (shape, dtype) is that of a volume: three axes, at least one voxel, real numbers."""
    if shape is None or len(shape) != 3:
        raise WrongRank(f"{name}: expected 3 axes (z, y, x), found shape {shape}; " + _rank_hint(shape or ()))
    if 0 in shape:
        raise EmptyVolume(f"{name}: expected at least one voxel along each axis (z, y, x), found shape {tuple(shape)}")
    if np.dtype(dtype).kind not in "biuf":
        raise WrongType(f"{name}: expected integers or floats, found dtype {dtype}; store the grey values as numbers")


def warn_of_storage(item, name):
    """Warn when the file is laid out so that each small read has to unpack a great part of it."""
    if item.chunks is not None and math.prod(item.chunks) * item.dtype.itemsize > LARGE_CHUNK_BYTES:
        warnings.warn(f"{name}: stored in chunks of {item.chunks} voxels, each unpacked whole for every region "
                      "that is read; repack it: h5repack -l CHUNK=8x256x256 -f GZIP=4 in.h5 out.h5", stacklevel=4)


def _rank_hint(shape):
    if len(shape) == 2:
        return "a single section has to be stored as (1, y, x)"
    if len(shape) == 4:
        return "channels have to be stored as separate datasets of (z, y, x)"
    return "store the stack as one array of (z, y, x)"


def nanometres(attributes, key, name):
    """The attribute `key` as three floats (z, y, x) in nm, or None when absent.

    The micrometre attribute ``element_size_um`` of other tools stands in for an absent ``resolution``.
    """
    factor = 1.0
    if key == "resolution" and key not in attributes and "element_size_um" in attributes:
        key, factor = "element_size_um", 1000.0
    if key not in attributes:
        return None
    try:
        values = tuple(float(v) * factor for v in np.ravel(attributes[key]))
    except (TypeError, ValueError):
        values = ()
    finite = "finite" if key == "offset" else "positive"
    if len(values) != 3 or not np.all(np.isfinite(values)) or (finite == "positive" and min(values) <= 0):
        raise WrongMetadata(f"{name}: attribute {key!r}: expected three {finite} numbers (z, y, x), "
                            f"found {attributes[key]!r}")
    return values
