"""A volume: an array that is read lazily, with its resolution and its place in the world, both in nm (z, y, x)."""
import numpy as np

from data.errors import Mismatch, NotFinite, OutsideVolume
from data.hdf5 import LazyDataset, check_volume, nanometres
from data.roi import Roi

WHOLE_VOXEL_TOLERANCE = 1e-3


class Volume:
    """Voxels (z, y, x) of anything that can be sliced, from `Volume.open` or `Volume.from_array`.

    Coordinates of regions are voxels of this volume: its first voxel is (0, 0, 0), whatever `offset_zyx` says.
    A volume can be pickled; an HDF5 file is opened anew in each process that reads it.

    Attributes
    ----------
    shape : (z, y, x)
    dtype : numpy.dtype
        As stored; nothing is scaled on reading.
    resolution_zyx : (float, float, float)
        Size of a voxel in nm; (1, 1, 1) where `resolution_known` is False.
    offset_zyx : (float, float, float)
        Place of the first voxel in nm.
    resolution_known, offset_known : bool
        Whether the file said so, or the default stands.
    name : str
        "file:dataset", for messages.
    """

    def __init__(self, array, resolution_zyx=None, offset_zyx=None, name="array", window=None):
        check_volume(array.shape, array.dtype, name)
        self._array = array
        self._window = window or Roi((0, 0, 0), array.shape)
        self.name = name
        self.resolution_known = resolution_zyx is not None
        self.resolution_zyx = nanometres({"resolution": resolution_zyx}, "resolution", name) if self.resolution_known \
            else (1.0, 1.0, 1.0)
        self.offset_known = offset_zyx is not None
        self.offset_zyx = nanometres({"offset": offset_zyx}, "offset", name) if self.offset_known else (0.0, 0.0, 0.0)

    @classmethod
    def open(cls, path, dataset="volumes/raw"):
        """A dataset of an HDF5 file, with its attributes `resolution` and `offset` (nm, zyx; offset absent: zero).

        Raises
        ------
        MissingFile, UnreadableFile, LockedFile, MissingDataset, MissingFilter, WrongRank, EmptyVolume, WrongType,
        WrongMetadata
        """
        array = LazyDataset(path, dataset)
        return cls(array, nanometres(array.attributes, "resolution", array.name),
                   nanometres(array.attributes, "offset", array.name), array.name)

    @classmethod
    def from_array(cls, array, resolution_zyx=None, offset_zyx=None, name="array"):
        """An array in memory as a volume; the array is not copied."""
        return cls(np.asarray(array), resolution_zyx, offset_zyx, name)

    def over(self, array, name=None):
        """The same place and resolution over another sliceable `array` of the same shape."""
        if tuple(array.shape) != self.shape:
            raise Mismatch(f"{name or self.name}: expected shape {self.shape}, found {tuple(array.shape)}")
        return Volume(array, self.resolution_zyx if self.resolution_known else None,
                      self.offset_zyx if self.offset_known else None, name or self.name)

    @property
    def shape(self):
        return self._window.shape

    @property
    def dtype(self):
        return np.dtype(self._array.dtype)

    @property
    def roi(self):
        """The whole volume as a region; it begins at (0, 0, 0)."""
        return Roi((0, 0, 0), self.shape)

    def __repr__(self):
        return f"Volume({self.name}, {self.shape} {self.dtype}, {self.resolution_zyx} nm at {self.offset_zyx} nm)"

    def read(self, roi=None):
        """The voxels of `roi` (default: all), in the stored dtype; not to be written to, they may be a view.

        Raises
        ------
        OutsideVolume
            If `roi` sticks out.
        NotFinite
            If a float volume has NaN or infinity there.
        """
        roi = self.roi if roi is None else roi
        if not self.roi.contains(roi):
            raise OutsideVolume(f"{self.name}: expected a region inside 0..{self.shape}, found {roi.begin}..{roi.end}")
        values = np.asarray(self._array[roi.shift(self._window.begin).slices])
        self._check_finite(values, roi)
        return values

    def _check_finite(self, values, roi):
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return
        bad = np.argwhere(~np.isfinite(values))
        place = tuple(int(b + o) for b, o in zip(bad[0], roi.begin))
        more = f" and {len(bad) - 1} more in the region {roi.begin}..{roi.end}" if len(bad) > 1 else ""
        raise NotFinite(f"{self.name}: expected finite values, found {values[tuple(bad[0])]} at voxel (z, y, x) = "
                        f"{place}{more}; repair them first")

    def read_mirrored(self, roi):
        """Like `read`, but `roi` may stick out: outside voxels are mirrored at the faces ("reflect").

        The face voxel itself is not repeated; where the region reaches further than the volume is wide, the
        mirroring goes on to and fro. An axis of a single voxel repeats it.
        """
        if self.roi.contains(roi):
            return self.read(roi)
        inner = reached(roi, self.shape)
        indices = (reflected(b, e, n) for b, e, n in zip(roi.begin, roi.end, self.shape))
        return self.read(inner)[np.ix_(*(i - b for i, b in zip(indices, inner.begin)))]

    def crop(self, roi):
        """A lazy view of `roi` as a volume of its own: what lies outside is out of reach, also for mirroring."""
        if not self.roi.contains(roi) or roi.size == 0:
            raise OutsideVolume(f"{self.name}: expected a region inside 0..{self.shape} with at least one voxel, "
                                f"found {roi.begin}..{roi.end}")
        moved = tuple(o + b * r for o, b, r in zip(self.offset_zyx, roi.begin, self.resolution_zyx))
        return Volume(self._array, self.resolution_zyx if self.resolution_known else None, moved, self.name,
                      roi.shift(self._window.begin))


def reflected(begin, end, length):
    """Indices begin..end-1 of an axis of `length` voxels, mirrored into it without repeating the outermost voxel.

    >>> reflected(-2, 5, 3)
    array([2, 1, 0, 1, 2, 1, 0])
    """
    period = max(1, 2 * (length - 1))
    index = np.arange(begin, end) % period
    return np.minimum(index, period - index) if length > 1 else np.zeros(end - begin, int)


def reached(roi, shape):
    """The voxels of a volume of `shape` that `Volume.read_mirrored` reads for a region that may stick out: a Roi."""
    indices = [reflected(b, e, n) for b, e, n in zip(roi.begin, roi.end, shape)]
    return Roi.between([int(i.min()) for i in indices], [int(i.max()) + 1 for i in indices])


def common_roi(raw, labels):
    """Where two volumes overlap in the world, as (region in `raw`, region in `labels`), both of one shape.

    A volume whose file does not say its resolution is taken to have the other's.

    Raises
    ------
    Mismatch
        If the resolutions differ, the offsets differ by a fraction of a voxel, nothing overlaps, or the shapes
        differ while neither says its offset (then pairing their corners would be a guess).
    """
    pair = f"{raw.name} and {labels.name}"
    if raw.shape != labels.shape and not (raw.offset_known or labels.offset_known):
        raise Mismatch(f"{pair}: expected one shape, or an attribute 'offset' (nm, zyx) that says where they meet; "
                       f"found shapes {raw.shape} and {labels.shape} and no offset")
    if raw.resolution_known and labels.resolution_known and not np.allclose(raw.resolution_zyx, labels.resolution_zyx):
        raise Mismatch(f"{pair}: expected one resolution, found {raw.resolution_zyx} and {labels.resolution_zyx} nm; "
                       "resample one of them or correct its attribute 'resolution'")
    resolution = raw.resolution_zyx if raw.resolution_known else labels.resolution_zyx
    shift = (np.array(labels.offset_zyx) - raw.offset_zyx) / resolution
    whole = np.rint(shift)
    if np.abs(shift - whole).max() > WHOLE_VOXEL_TOLERANCE:
        raise Mismatch(f"{pair}: expected offsets that differ by whole voxels, found {raw.offset_zyx} and "
                       f"{labels.offset_zyx} nm at {resolution} nm, that is {tuple(shift.round(3).tolist())} voxels")
    in_raw = raw.roi.intersect(labels.roi.shift(whole))
    if in_raw.size == 0:
        raise Mismatch(f"{pair}: they do not overlap: shapes {raw.shape} and {labels.shape}, offsets "
                       f"{raw.offset_zyx} and {labels.offset_zyx} nm; correct the attribute 'offset' of one of them")
    return in_raw, in_raw.shift(-whole)
