"""Averaging over the ways in which a network can look at the same voxels (test-time augmentation).

A serial section has no left or right, and a stack of them no top: a network may see a block flipped along any axis, and
with y and x swapped; never with z in the place of another axis, since sections are thicker than voxels are wide. Each of
its maps is turned back, and their probabilities are averaged. Ciresan et al., "Deep neural networks segment neuronal
membranes in electron microscopy images", NIPS 2012, averaged over flips and rotations of the test stack in this way.

A network whose field of view is even sees one voxel more on one side; flipped, on the other. What is read covers both,
and each orientation takes its part, so blocks give what the whole volume gives, flipped and mirrored as a whole.
"""
import itertools

from data.orientation import Geometry, Orientation
from znn.pipeline.errors import one_of

AVERAGES = {
    "off": (Orientation(),),
    "flips": tuple(Orientation(flips) for flips in itertools.product((False, True), repeat=3)),
    "all": tuple(Orientation(flips, transpose) for transpose in (False, True)
                 for flips in itertools.product((False, True), repeat=3)),
}


def orientations(name):
    """The orientations of a key of `AVERAGES`; tuple.

    Raises
    ------
    WrongSetting
    """
    one_of("tta", name, AVERAGES)
    return AVERAGES[name]


def context(field_of_view, orientations):
    """Voxels (z, y, x) before and after a written region that some orientation reads: (low, high)."""
    ways = [_geometry(field_of_view, (1, 1, 1)).oriented(each) for each in orientations]
    return tuple(tuple(map(max, zip(*sides))) for sides in ([w.before for w in ways], [w.after for w in ways]))


def averaged(predict, x, field_of_view, orientations):
    """The mean over orientations of what a network makes of a block.

    Parameters
    ----------
    predict : callable, (C, Z, Y, X) to (Z', Y', X')
    x : ndarray, (C, Z, Y, X)
        With as much context as `context` says.
    field_of_view : (z, y, x)
        What `predict` takes off, less one.
    orientations : sequence of Orientation

    Returns
    -------
    ndarray, (Z', Y', X')
    """
    if len(orientations) == 1 and orientations[0] == Orientation():
        return predict(x)
    low, high = context(field_of_view, orientations)
    shape = tuple(n - a - b for n, a, b in zip(x.shape[1:], low, high))
    total = None
    for each in orientations:
        turned = (shape[0], shape[2], shape[1]) if each.transpose else shape
        part = _geometry(field_of_view, turned).oriented(each)
        begin = [a - b for a, b in zip(low, part.before)]
        seen = x[:, *(slice(b, b + n) for b, n in zip(begin, part.input_shape))]
        result = each.undo(predict(each.apply(seen)))
        if total is None:
            total = result
        else:
            total += result
    total /= len(orientations)
    return total


def _geometry(field_of_view, shape):
    return Geometry.centred(tuple(n + f - 1 for n, f in zip(shape, field_of_view)), shape)
