"""Grey values to what networks are fed; one set of functions for training and for inference."""
from dataclasses import asdict, dataclass, fields

import numpy as np

from data.errors import WrongSetting
from data.roi import Roi, blocks

KINDS = ("section", "volume", "none")
SCALINGS = ("fixed", "stack")
SLAB_SECTIONS = 8
BAND_VOXELS = 1 << 22
FLAT = 1e-7  # a deviation below this part of the mean is rounding, not contrast
FAINTEST = 1e-30  # a map whose extremes are nearer than this has no contrast, and is not divided by it


@dataclass
class Standardisation:
    """How grey values are standardised; stored with the trained network.

    kind : "section"
        ``(x - mean) / std`` with the mean and the population standard deviation of the whole section the voxel lies in.
    kind : "volume"
        The same with those of the whole volume.
    kind : "none"
        Only `as_float`.

    Where the deviation is zero (a blank section) the result is zero.
    """

    kind: str = "section"

    def __post_init__(self):
        if self.kind not in KINDS:
            raise WrongSetting(f"standardisation kind: expected one of {', '.join(KINDS)}, found {self.kind!r}")

    def to_dict(self):
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values):
        """The inverse of `to_dict`; a key that this version does not know is an error."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise WrongSetting(f"standardisation: unknown keys {sorted(unknown)}; written by a newer version?")
        return cls(**values)


def as_float(values):
    """Voxels as float32; the range follows from the dtype alone, never from the values.

    Integers are divided by the largest value of their type (uint8 by 255, uint16 by 65535), booleans become 0 and 1,
    floats keep their values.
    """
    if values.dtype.kind in "iu":
        return (values / np.float64(np.iinfo(values.dtype).max)).astype(np.float32)
    return values.astype(np.float32)


def standardised(volume, spec):
    """`volume` with standardised float32 values: a lazy Volume, read like any other.

    Statistics are those of all of `volume`, however small the region that is read; they are found when first needed,
    section by section in bounded memory, and kept.

    Parameters
    ----------
    volume : Volume
    spec : Standardisation
    """
    return volume.over(_Standardised(volume, spec))


class _Lazy:
    """What Volume slices: float32 values computed from another volume when read."""

    dtype = np.dtype(np.float32)

    def __init__(self, volume):
        self.volume, self.shape = volume, volume.shape

    def __getitem__(self, slices):
        return self.compute(Roi.between([s.start for s in slices], [s.stop for s in slices]))


class _Standardised(_Lazy):
    def __init__(self, volume, spec):
        super().__init__(volume)
        self.spec = spec
        self.mean, self.std = np.zeros(self.shape[0]), np.zeros(self.shape[0])
        self.known = np.zeros(self.shape[0], bool)

    def compute(self, roi):
        values = self.volume.read(roi)
        if self.spec.kind == "none":
            return as_float(values)
        mean, std = self._statistics(roi.slices[0])
        flat = std <= FLAT * np.abs(mean)
        scale = np.where(flat, 0.0, 1.0 / np.where(flat, 1.0, std))
        return ((values - mean[:, None, None]) * scale[:, None, None]).astype(np.float32)

    def _statistics(self, sections):
        if self.spec.kind == "section":
            self._learn(sections)
            return self.mean[sections], self.std[sections]
        self._learn(slice(0, self.shape[0]))
        mean = self.mean.mean()
        std = np.sqrt(np.mean(self.std ** 2 + (self.mean - mean) ** 2))
        count = sections.stop - sections.start
        return np.full(count, mean), np.full(count, std)

    def _learn(self, sections):
        """Find what is not known yet; in whole slabs, because storage chunks hold several sections."""
        for begin in range(sections.start // SLAB_SECTIONS * SLAB_SECTIONS, sections.stop, SLAB_SECTIONS):
            slab = slice(begin, min(begin + SLAB_SECTIONS, self.shape[0]))
            if not self.known[slab].all():
                self.mean[slab], self.std[slab] = section_statistics(self.volume, slab.start, slab.stop)
                self.known[slab] = True


def section_statistics(volume, begin, end):
    """Mean and population standard deviation of sections begin..end-1, two float64 arrays.

    Whole sections are read in bands of rows; the moments of bands are merged exactly (Chan, Golub and LeVeque 1983).
    """
    _, height, width = volume.shape
    rows = max(1, BAND_VOXELS // width)
    count, mean, spread = 0, np.zeros(end - begin), np.zeros(end - begin)
    for block in blocks(Roi((begin, 0, 0), (end - begin, height, width)), (end - begin, rows, width)):
        band = volume.read(block.write)
        size = block.write.shape[1] * width
        for z, section in enumerate(band):
            band_mean = section.mean(dtype=np.float64)
            delta, total = band_mean - mean[z], count + size
            spread[z] += np.square(section - band_mean, dtype=np.float64).sum() + delta ** 2 * count * size / total
            mean[z] += delta * size / total
        count += size
    return mean, np.sqrt(spread / count)


def scale_map(probability, how="fixed", extremes=None):
    """A boundary map scaled to [-1, 1], as the second input of a recursive network.

    Parameters
    ----------
    probability : array
        In [0, 1].
    how : "fixed" or "stack"
        "fixed" is ``2 p - 1``, the same wherever the map was computed; "stack" stretches the map's own extremes
        to -1 and 1, as the published experiments did.
    extremes : (float, float), optional
        Smallest and largest value of the whole stack, for "stack" when `probability` is a part of it.

    Returns
    -------
    float32 array
    """
    if how not in SCALINGS:
        raise WrongSetting(f"recursion_scaling: expected one of {', '.join(SCALINGS)}, found {how!r}")
    low, high = (0.0, 1.0)
    if how == "stack":
        low, high = extremes if extremes is not None else (probability.min(), probability.max())
    span = high - low if high - low >= FAINTEST else 1.0
    return ((probability - low) * (2.0 / span) - 1.0).astype(np.float32)


class _ScaledMap(_Lazy):
    def __init__(self, volume, how):
        super().__init__(volume)
        self.how, self.extremes = how, None

    def compute(self, roi):
        if self.how == "stack" and self.extremes is None:
            self.extremes = map_extremes(self.volume)
        return scale_map(as_float(self.volume.read(roi)), self.how, self.extremes)


def scaled_map(volume, how="fixed"):
    """A volume of boundary probabilities as a lazy Volume scaled by `scale_map`, with the extremes of all of it."""
    if how not in SCALINGS:
        raise WrongSetting(f"recursion_scaling: expected one of {', '.join(SCALINGS)}, found {how!r}")
    return volume.over(_ScaledMap(volume, how))


def map_extremes(volume):
    """Smallest and largest probability of a volume, read slab by slab."""
    low, high = np.inf, -np.inf
    for block in blocks(volume.roi, (SLAB_SECTIONS, *volume.shape[1:])):
        slab = as_float(volume.read(block.write))
        low, high = min(low, float(slab.min())), max(high, float(slab.max()))
    return low, high
