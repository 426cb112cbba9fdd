"""Neurons out of a boundary map: components and seeded watershed section by section, or a watershed of the volume.

::

    probability --(below threshold)--> components --(large enough)--> seeds --> flooded --> small ones joined
                                           |                                       |               |
                                       components                              watershed       watershed_3d
"""
from dataclasses import dataclass

import numpy as np

from znn.pipeline.errors import WrongSetting, not_negative, one_of
from znn.pipeline.partition import drop_small, grow, section_components, volume_components

METHODS = ("none", "components", "watershed", "watershed_3d")
ID_TYPES = ("uint32", "uint64")


@dataclass
class Segmentation:
    """How a boundary map is made into segments.

    method : "none"; "components", of each section; "watershed", each section flooded from those of them that are seeds;
        "watershed_3d", the volume flooded, then small segments joined
    threshold : voxels below it are inside a cell; absent: the one kept with the model, for each section; in 3D seeds
        are better taken where the map is surer, so give a lower one
    smallest_seed : voxels of a component that may be a seed; smaller ones are flooded
    smallest : in 3D, segments of fewer voxels are joined with a neighbour
    join_below : in 3D, if the mean boundary probability of the voxels on both sides of their common face is below it
    ids : "uint32" or "uint64", the type of the ids in the file
    """

    method: str = "none"
    threshold: float | None = None
    smallest_seed: int = 25
    smallest: int = 1000
    join_below: float = 0.5
    ids: str = "uint64"

    def __post_init__(self):
        one_of("segment.method", self.method, METHODS)
        one_of("segment.ids", self.ids, ID_TYPES)
        not_negative("segment.smallest_seed", self.smallest_seed)
        not_negative("segment.smallest", self.smallest)
        for name in ("threshold", "join_below"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise WrongSetting(f"segment.{name}: expected a number above 0 and at most 1, found {value}")


def segment(probability, threshold, settings):
    """Segments of a boundary map.

    Parameters
    ----------
    probability : ndarray of float, shape (Z, Y, X)
        1 is boundary.
    threshold : float
        Stands for that of `settings` where that has none.
    settings : Segmentation
        With a method.

    Returns
    -------
    ndarray of int64, shape (Z, Y, X)
        Ids 1, 2, ... through the volume; 0 is boundary, which only "components" leaves where there is any seed.  The
        methods in 2D give every profile of a neuron an id of its own.
    """
    if settings.method == "watershed_3d":
        seeds = drop_small(volume_components(probability < threshold), settings.smallest_seed)
        grown = grow(seeds, probability)
        return join_small(grown, probability, settings.smallest, settings.join_below)
    sections = section_components(probability < threshold)
    if settings.method == "watershed":
        sections = np.stack([grow(drop_small(section, settings.smallest_seed), height)
                             for section, height in zip(sections, probability, strict=True)])
    return numbered_through(sections)


def numbered_through(sections):
    """A section partition (Z, Y, X) with ids that no two sections share, small ones: int64."""
    ids, first = np.zeros(sections.shape, np.int64), 0
    for section, out in zip(sections, ids, strict=True):
        values, dense = np.unique(section, return_inverse=True)
        dense = dense.reshape(section.shape) + (values[0] != 0)
        out[:] = np.where(dense > 0, dense + first, 0)
        first = max(first, int(out.max()))
    return ids


def join_small(segments, probability, smallest, join_below):
    """Join segments of fewer than `smallest` voxels with neighbours, over the weakest boundaries first.

    The merging of Zlateski and Seung (2015, arXiv 1505.00249): faces in ascending order of the boundary on them, as
    long as that is below `join_below`; two segments become one when either is still too small.

    Parameters
    ----------
    segments : ndarray of int, shape (Z, Y, X)
        0 is no segment.
    probability : ndarray of float, same shape
    smallest : int
    join_below : float

    Returns
    -------
    ndarray of int64
        Ids 1, 2, ...
    """
    pairs, heights = face_heights(segments, probability)
    sizes, parent = np.bincount(segments.ravel()), np.arange(int(segments.max()) + 1)

    def root(i):
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for k in np.argsort(heights, kind="stable"):
        if heights[k] >= join_below:
            break
        a, b = sorted(root(i) for i in pairs[k])
        if a != b and min(sizes[a], sizes[b]) < smallest:
            parent[b], sizes[a] = a, sizes[a] + sizes[b]
    roots = np.array([root(i) for i in range(parent.size)])
    kept = np.unique(np.append(0, roots[np.unique(segments)]))
    return np.searchsorted(kept, roots[segments])


def face_heights(segments, probability):
    """Faces between segments and the boundary on them.

    Parameters
    ----------
    segments : ndarray of int, shape (Z, Y, X)
    probability : ndarray of float, same shape

    Returns
    -------
    pairs : ndarray of int, shape (faces, 2)
        Two ids, the smaller first; 0 has no face.
    heights : ndarray of float, shape (faces,)
        Mean over pairs of touching voxels of the larger of their two probabilities.
    """
    found, values = [], []
    for axis in range(segments.ndim):
        one = tuple(slice(None, -1) if i == axis else slice(None) for i in range(segments.ndim))
        other = tuple(slice(1, None) if i == axis else slice(None) for i in range(segments.ndim))
        a, b = segments[one], segments[other]
        meet = (a != b) & (a != 0) & (b != 0)
        found.append(np.stack([np.minimum(a, b)[meet], np.maximum(a, b)[meet]], 1))
        values.append(np.maximum(probability[one], probability[other])[meet])
    pairs, which = np.unique(np.concatenate(found), axis=0, return_inverse=True)
    which, values = which.ravel(), np.concatenate(values).astype(np.float64)
    return pairs, np.bincount(which, values, len(pairs)) / np.maximum(np.bincount(which, minlength=len(pairs)), 1)
