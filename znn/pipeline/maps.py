"""The maps of finished stages: in files between runs, never made twice by the same weights."""
import hashlib

from data import blocks, write_volume
from data.hdf5 import LazyDataset
from znn.pipeline.output import BOUNDARY


def map_digest(states, raw):
    """Hexadecimal digest of what a map is made from: weights, a dict of tensors for each network that makes a part of
    it, and the grey values of a Volume.

    The voxels count and not the file's name, so data may move between two runs, and others in its place are noticed.
    """
    digest = hashlib.sha256(repr((raw.shape, raw.dtype.str)).encode())
    for state in states.values():
        for name, tensor in sorted(state.items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for block in blocks(raw.roi, (1, *raw.shape[1:])):
        digest.update(raw.read(block.write).tobytes())
    return digest.hexdigest()


def made_from(path, digest):
    """Whether a file holds a map that was made from what the digest stands for."""
    return path.is_file() and LazyDataset(path, BOUNDARY).attributes.get("made_from") == digest


def keep_map(path, volume, digest):
    """Write a map, a Volume, with the digest of what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_volume(path, {BOUNDARY: (volume.read(), {"made_from": digest})}, volume.resolution_zyx, volume.offset_zyx)


def kept_map(path, image):
    """A map that `keep_map` wrote, as a lazy Volume on the grid of `image`."""
    return image.over(LazyDataset(path, BOUNDARY), f"{path}:{BOUNDARY}")
