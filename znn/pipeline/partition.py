"""Segments out of boundaries: components, watershed lines, growing; section by section or in the volume.

A *section partition* is a (Z, Y, X) array whose numbers are unique within a section only; 0 is boundary.  In a section
neighbours share an edge (4 of them), in the volume a face (6), so that a boundary one voxel wide and closed
diagonally still separates.
"""
import numpy as np
from scipy import ndimage
from skimage.measure import label
from skimage.segmentation import watershed


def section_components(labels):
    """Connected components of equal, non-zero labels within each section.

    Parameters
    ----------
    labels : ndarray of int or bool, shape (Z, Y, X)

    Returns
    -------
    ndarray of int32, shape (Z, Y, X)
        A section partition; two profiles of one neuron in a section get two numbers.
    """
    sections = [label(section, background=0, connectivity=1) for section in _as_labels(labels)]
    return np.stack(sections).astype(np.int32)


def volume_components(interior):
    """6-connected components of a (Z, Y, X) mask; 0 outside it."""
    return label(interior, background=0, connectivity=1).astype(np.int32)


def thin_boundaries(section):
    """Grow the segments of a section over the boundary between them until only watershed lines are left.

    Growth is at equal speed from all segments (the boundary is flat), as the ISBI 2012 evaluation thins the
    borders of the proposal, so that the width at which a method draws membranes does not count.

    Parameters
    ----------
    section : ndarray of int, shape (Y, X)
        Segments; 0 is boundary.

    Returns
    -------
    ndarray of int, shape (Y, X)
        Segments; 0 only on the lines, and everywhere if there is no segment.
    """
    return watershed((section == 0).astype(np.uint8), section, connectivity=1, watershed_line=True)


def grow(seeds, height):
    """Flood from seeds over the voxels that have none, lowest `height` first, until segments touch.

    Parameters
    ----------
    seeds : ndarray of int
        2D or 3D; 0 where to grow.
    height : ndarray
        Same shape; the boundary probability.

    Returns
    -------
    ndarray of int
        No 0 left wherever a seed can be reached.
    """
    # Voxels deep inside a seed change nothing; leaving them out makes the flood several times faster.
    rim = ndimage.binary_dilation(seeds == 0)
    return np.where(rim, watershed(height, seeds, mask=rim, connectivity=1), seeds)


def drop_small(segments, smallest):
    """Set segments of fewer than `smallest` voxels to 0."""
    sizes = np.bincount(segments.ravel())
    return np.where(sizes[segments] >= smallest, segments, 0)


def _as_labels(labels):
    """`skimage.measure.label` treats bool as a mask; everything else by value, for which it needs signed integers."""
    return labels if labels.dtype == bool else labels.astype(np.int64)
