"""Writing volumes to HDF5, whole or not at all."""
import os
from pathlib import Path

import h5py
import numpy as np

from data.errors import NotWritable
from data.files import replacing

CHUNK = (8, 256, 256)


def write_volume(path, datasets, resolution_zyx, offset_zyx=(0.0, 0.0, 0.0), attributes=None):
    """Write arrays to one HDF5 file under a temporary name, then rename it, so that no reader sees a part of it.

    Parameters
    ----------
    path : str or Path
        Replaced when it exists.
    datasets : dict
        {"volumes/raw": (array (Z, Y, X), attributes of the dataset), ...}; gzip-compressed in chunks.
    resolution_zyx, offset_zyx : (z, y, x)
        In nm; stored with each dataset, as is ``axes``; a dataset's own attributes win. An unknown resolution is None,
        and not stored.
    attributes : dict, optional
        Of the file.

    Raises
    ------
    NotWritable
    """
    path = Path(path)
    try:
        with replacing(path) as partial, h5py.File(partial, "w") as file:
            file.attrs.update(attributes or {})
            for name, (array, own) in datasets.items():
                array = np.asarray(array)
                chunks = tuple(min(c, n) for c, n in zip(CHUNK, array.shape))
                item = file.create_dataset(name, data=array, chunks=chunks, compression="gzip", compression_opts=3)
                place = {"offset": np.asarray(offset_zyx, float), "axes": "zyx"}
                if resolution_zyx is not None:
                    place["resolution"] = np.asarray(resolution_zyx, float)
                item.attrs.update(place | own)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise NotWritable(f"{path}: cannot write here ({reason}); check that the folder {path.absolute().parent} "
                          "exists, may be written to, and has space") from error
