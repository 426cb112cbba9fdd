"""What a network is taught: 0 interior, 1 boundary, 255 not to be learnt from."""
import numpy as np

from data.errors import Mismatch, WrongSetting, WrongType

INTERIOR, BOUNDARY, IGNORE = 0, 1, 255
LABEL_KINDS = ("membrane", "ids")


def unlabelled(labels):
    """Where a label means "no label": negative values, and the largest value of uint32 and uint64 (CREMI).

    Smaller unsigned types have too few values to spare one: there 255 or 65535 is a label like any other.
    """
    if labels.dtype.kind == "u" and labels.dtype.itemsize >= 4:
        return labels == np.iinfo(labels.dtype).max
    if labels.dtype.kind == "i":
        return labels < 0
    return np.zeros(labels.shape, bool)


def boundary_target(labels, kind, mask=None):
    """Boundary or interior for every voxel.

    Parameters
    ----------
    labels : (Z, Y, X) array
        For "membrane": nonzero is boundary. For "ids": integer ids of objects; 0 is boundary, and so are the
        voxels on both sides where two objects touch within a section (4-neighbourhood; never across sections,
        which lie too far apart for that).
    kind : "membrane" or "ids"
    mask : (Z, Y, X) array, optional
        Nonzero where labels are to be ignored.

    Returns
    -------
    (Z, Y, X) uint8 array
        0 interior, 1 boundary, 255 ignored. A voxel without a label is ignored and makes no boundary beside it.
    """
    if kind not in LABEL_KINDS:
        raise WrongSetting(f"kind of labels: expected one of {', '.join(LABEL_KINDS)}, found {kind!r}")
    if kind == "ids" and labels.dtype.kind not in "iu":
        raise WrongType(f"labels of kind 'ids': expected integers, found {labels.dtype}; is this a membrane map?")
    if mask is not None and mask.shape != labels.shape:
        raise Mismatch(f"mask of labels: expected shape {labels.shape}, found {mask.shape}")
    ignored = unlabelled(labels) if mask is None else unlabelled(labels) | (mask != 0)
    boundary = labels != 0 if kind == "membrane" else (labels == 0) | touching(np.where(ignored, 0, labels))
    return np.where(ignored, IGNORE, boundary).astype(np.uint8)


def touching(ids):
    """Where an in-plane 4-neighbour has another nonzero id; 0 touches nothing."""
    found = np.zeros(ids.shape, bool)
    for axis in (1, 2):
        one, other = [slice(None)] * 3, [slice(None)] * 3
        one[axis], other[axis] = slice(None, -1), slice(1, None)
        a, b = ids[tuple(one)], ids[tuple(other)]
        meet = (a != b) & (a != 0) & (b != 0)
        found[tuple(one)] |= meet
        found[tuple(other)] |= meet
    return found
