"""Small stacks for tests: odd shape, three different voxel sizes, an offset."""
import numpy as np

from data import Source, Volume

RESOLUTION, OFFSET = (40.0, 4.0, 3.5), (37.0, 911.0, 911.0)


def numbered(shape, offset=OFFSET):
    """A float volume in which each voxel holds its own number, so that a patch tells where it was cut."""
    return Volume.from_array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), RESOLUTION, offset, "numbered")


def checkered(shape, offset=OFFSET, dtype=np.uint8):
    """Membrane labels without a symmetry: about a quarter boundary."""
    values = np.random.default_rng(5).random(shape) < 0.25
    return Volume.from_array(values.astype(dtype), RESOLUTION, offset, "labels")


def source(shape=(7, 61, 83), **options):
    """A numbered image with labels."""
    return Source(numbered(shape), checkered(shape), "membrane", **options)
