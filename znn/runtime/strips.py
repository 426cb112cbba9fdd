"""How passes over memory are cut into tasks: each takes a strip of neighbouring rows of one plane.

Strips depend on the shape of the array alone, so what is summed in which order does not depend on the threads; they
are small enough to keep many threads busy when planes are few, and long enough to hide what a task costs.
"""
from numba import njit

VOXELS = 1 << 13  # of a strip, about: 32 KiB of float32


def height(width):
    """Rows of a strip when each has `width` voxels."""
    return max(1, VOXELS // width)


@njit(inline="always")
def count(shape, height):
    """Strips of an array (n, c, z, y, x)."""
    return shape[0] * shape[1] * shape[2] * -(-shape[3] // height)


@njit(inline="always")
def place(number, shape, height):
    """Where strip `number` lies: volume, channel, section, its first row, and the row after its last."""
    strips = -(-shape[3] // height)
    plane, first = number // strips, number % strips * height
    volume, section = plane // (shape[1] * shape[2]), plane % shape[2]
    return volume, plane // shape[2] % shape[1], section, first, min(first + height, shape[3])
