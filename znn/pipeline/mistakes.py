"""Merges and splits of a prediction, section by section, the costliest first: where to look.

In a section a *merge* is a predicted segment that lies in several true ones, a *split* a true segment that lies in
several predicted ones::

    true   | A | B |      true   |   A   |
    found  |   1   |      found  | 1 | 2 |
             merge                 split

The cost is the share of the section's pairs of labelled voxels that are judged wrongly for it. With n_k voxels of a
segment in its part k, and N labelled voxels in the section::

    ((sum n_k)^2 - sum n_k^2) / N^2

These are the terms by which the sums of V_rand differ from those of a perfect partition (`metrics.rand_split_merge`),
but for voxels on predicted boundary.
"""
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

KINDS = "merge", "split"
SMALLEST = 25  # voxels of a part: fewer are a boundary that is drawn a little aside, no mistake


@dataclass(frozen=True)
class Mistake:
    """A merge or a split.

    Attributes
    ----------
    kind : "merge" or "split"
    z, y, x : int
        A voxel near which it happens: between the two largest parts, and on the boundary that is missed or drawn there.
    cost : float
        From 0 to 1, see above.
    parts : int
        Of at least `SMALLEST` voxels.
    """

    kind: str
    z: int
    y: int
    x: int
    cost: float
    parts: int


def mistakes(true_sections, sections, most=50):
    """The costliest merges and splits of a section partition.

    Parameters
    ----------
    true_sections, sections : ndarray of int, shape (Z, Y, X)
        Numbered within each section (`partition.section_components`); 0 is boundary, or not labelled.
    most : int
        How many of each kind.

    Returns
    -------
    list of Mistake
        Merges, then splits; each from the costliest on.
    """
    found = []
    for kind, wholes, parts in zip(KINDS, (sections, true_sections), (true_sections, sections)):
        broken = [(cost, z, *which) for z in range(len(sections))
                  for cost, *which in _broken(wholes[z], parts[z], np.count_nonzero(true_sections[z]))]
        for cost, z, whole, pieces in sorted(broken, key=lambda each: -each[0])[:most]:
            where = _between(wholes[z] == whole, parts[z], pieces[:2])
            found.append(Mistake(kind, z, *where, cost, len(pieces)))
    return found


def _broken(whole, parts, labelled):
    """(cost, segment, its parts from the largest on) for every segment of `whole` in several segments of `parts`."""
    both = (whole > 0) & (parts > 0)
    pairs, counts = np.unique(np.stack([whole[both], parts[both]]), axis=1, return_counts=True)
    pairs, counts = pairs[:, counts >= SMALLEST], counts[counts >= SMALLEST].astype(float)
    edges = np.flatnonzero(np.diff(pairs[0])) + 1
    for of_whole, others, n in zip(*(np.split(a, edges) for a in (*pairs, counts))):
        if len(n) > 1:
            yield (n.sum() ** 2 - n @ n) / labelled ** 2, of_whole[0], others[np.argsort(-n, kind="stable")]


def _between(inside, parts, pair):
    """The voxel of a segment, of those in none of its parts if there are any, that is the nearest to two of them."""
    distance = sum(ndimage.distance_transform_edt(~(inside & (parts == part))) for part in pair)
    on_boundary = inside & (parts == 0)
    among = on_boundary if on_boundary.any() else inside
    return tuple(int(i) for i in np.unravel_index(np.where(among, distance, np.inf).argmin(), inside.shape))
