"""The maps of finished stages: in files between sessions, known to inference, never made twice by the same weights."""
import hashlib

from data import write_volume
from data.hdf5 import LazyDataset
from znn.pipeline.inference import MemoryStore
from znn.pipeline.output import BOUNDARY


class KnownMaps(MemoryStore):
    """Keeps maps in memory; those of some stages are there from the start.

    Parameters
    ----------
    known : dict of str to Volume
        Finished maps over the whole image, by stage.
    """

    def __init__(self, known):
        self.known = known

    def stage(self, stage):
        """Where the map of a stage goes, all done when it is known."""
        kept = super().stage(stage)
        if stage.name in self.known:
            kept.values = self.known[stage.name].read(stage.region)
            kept.done[:] = True
        return kept


def weights_digest(state):
    """Hexadecimal digest of weights, a dict of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def made_by(path, digest):
    """Whether a file holds a map that these weights made."""
    return path.is_file() and LazyDataset(path, BOUNDARY).attributes.get("weights") == digest


def keep_map(path, volume, digest):
    """Write a map, a Volume, with the digest of the weights that made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_volume(path, {BOUNDARY: (volume.read(), {"weights": digest})}, volume.resolution_zyx, volume.offset_zyx)


def kept_map(path, image):
    """A map that `keep_map` wrote, as a lazy Volume on the grid of `image`."""
    return image.over(LazyDataset(path, BOUNDARY), f"{path}:{BOUNDARY}")
