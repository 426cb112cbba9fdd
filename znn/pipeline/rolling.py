r"""A map on its way to the next stage: only the sections that are still needed are held.

Each stage writes its region in layers, as deep as its blocks. A layer is computed when one of the next stage needs a
section of it, so all stages sweep through the sections together::

    z  ----------------------------------->
    stage 1   |  1  |  2  |  3  |  5  |            the numbers: in which order layers are computed
    stage 2             |    4    |    6    |      4 reads, with its context, of 1, 2 and 3; 6 no longer reads of 1
"""
import numpy as np

from data.volume import reflected


class RollingMap:
    """The last sections of a map that were written, in memory that is used in turn.

    Parameters
    ----------
    shape : (z, y, x)
        Of the whole map.
    sections : int
        How many are held.
    """

    dtype = np.dtype(np.float32)
    slow = False

    def __init__(self, shape, sections):
        self.shape, self.sections = tuple(shape), sections
        self._values, self._held = None, np.full(sections, -1)

    def put(self, index, roi, values):
        """Keep a block's `values` at `roi` of the map."""
        if self._values is None:                     # not sooner: the column before still has its own
            self._values = np.empty((self.sections, *self.shape[1:]), np.float32)
        for z, section in zip(range(roi.begin[0], roi.end[0]), values):
            self._values[(z % self.sections, *roi.slices[1:])] = section
            self._held[z % self.sections] = z

    def __getitem__(self, slices):
        z = np.arange(slices[0].start, slices[0].stop)
        if not np.array_equal(self._held[z % self.sections], z):
            raise LookupError(f"sections {z[0]}..{z[-1]} of a map are not held any more, or not yet")
        return np.stack([self._values[(i % self.sections, *slices[1:])] for i in z])


def layers(stage):
    """The layers of a stage, as pairs of its sections in the image: begin and end."""
    begin, end, depth = stage.region.begin[0], stage.region.end[0], stage.block_shape[0]
    return [(z, min(z + depth, end)) for z in range(begin, end, depth)]


def spans(stage, cut, sections):
    """For each layer the sections of the map before that it reads, or that a layer after it still reads.

    Parameters
    ----------
    stage : Stage
    cut : list of (begin, end)
        Its layers.
    sections : int
        Of the image, in which the context is mirrored.

    Returns
    -------
    list of (begin, end)
    """
    low, high = (c[0] for c in stage.context)
    found, first = [], sections
    for begin, end in reversed(cut):
        seen = reflected(begin - low, end + high, sections)
        first = min(first, int(seen.min()))
        found.append((first, int(seen.max()) + 1))
    return found[::-1]


def sweep(cuts, needs, wanted):
    """The order in which the layers of all stages are computed.

    Parameters
    ----------
    cuts : list of list of (begin, end)
        The layers of each stage.
    needs : list of list of (begin, end)
        For each layer the sections that it reads of the map before, see `spans`; of the first stage they do not count.
    wanted : iterable of int
        Layers of the last stage, in order.

    Yields
    ------
    (int, int)
        A stage, and a layer of it that is to be computed next.
    """
    made = [0] * len(cuts)

    def cover(i, begin, end):
        """Compute the layers of stage i that meet begin..end."""
        first = next(k for k, layer in enumerate(cuts[i]) if layer[1] > begin)
        for k in range(max(made[i], first), len(cuts[i])):
            if cuts[i][k][0] >= end:
                break
            if i:
                yield from cover(i - 1, *needs[i][k])
            yield i, k
            made[i] = k + 1

    for k in wanted:
        if len(cuts) > 1:
            yield from cover(len(cuts) - 2, *needs[-1][k])
        yield len(cuts) - 1, k


def capacities(cuts, needs):
    """How many sections of each map but the last have to be held, so that each is computed once; list."""
    written, most = [0] * len(cuts), [0] * (len(cuts) - 1)
    for i, k in sweep(cuts, needs, range(len(cuts[-1]))):
        written[i] = cuts[i][k][1]
        if i:
            most[i - 1] = max(most[i - 1], written[i - 1] - needs[i][k][0])
    return most
