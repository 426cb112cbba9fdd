"""What is read from the files of a prediction and of its truth, how it is taken, and which voxels are compared."""
import math
from dataclasses import dataclass, field, replace

import numpy as np

from data.errors import DataError, Mismatch, WrongSetting, WrongType
from data.hdf5 import LazyDataset, list_datasets, open_file
from data.normalise import as_float
from data.roi import Roi
from data.targets import BOUNDARY, IGNORE, boundary_target
from data.volume import Volume, common_roi
from znn.pipeline.boundary_scores import SEED_SIZES_PX, Truth
from znn.pipeline.errors import UndefinedVolume
from znn.pipeline.metrics import CONVENTIONS, dense_ids
from znn.pipeline.partition import section_components
from znn.pipeline.segmentation import Segmentation
from znn.pipeline.sweep import coarse_thresholds

RAW = "volumes/raw"
MEMBRANE, NEURON_IDS = "volumes/labels/membrane", "volumes/labels/neuron_ids"
PREDICTION_KINDS = ("auto", "boundary", "mask", "segmentation")
TRUTH_KINDS = ("auto", "membrane", "ids")


@dataclass
class EvaluationSettings:
    """What is compared with what, and how.

    Attributes
    ----------
    prediction, truth : str
        HDF5 files.
    prediction_dataset : str
    prediction_kind : str
        "boundary": probability of membrane, float in [0, 1], or unsigned integers whose attribute `scale` (else
        1 / the type's maximum) makes them so.  "mask": nonzero is membrane.  "segmentation": ids, 0 is boundary.
        "auto": float and uint8 are "boundary", but uint8 of nothing but 0 and 1 without `scale`, and bool, are "mask";
        every wider integer is "segmentation".
    truth_dataset : str, optional
        Absent: volumes/labels/membrane, else volumes/labels/neuron_ids.
    truth_kind : str
        "membrane" (nonzero is membrane) or "ids"; "auto": uint8 and bool are "membrane", wider integers "ids".
    ids_dataset : str, optional
        Neurons numbered through the volume, for the scores in 3D.  Absent: the truth when it is of ids, else
        volumes/labels/neuron_ids where the file has it.
    mask_dataset : str, optional
        In the truth's file: voxels where it is nonzero are not scored.
    raw_dataset : str
        In the truth's file, else in the prediction's: background of the pictures; may be missing.
    z_range : [first, last + 1], optional
        Sections of the truth to score, counted in the truth's dataset from 0.
    rand_convention : str
        Of the adapted Rand error in 3D: "cremi" or "skimage".
    coarse_step, fine_step : float
        Of the thresholds.
    seed_sizes_px : list of int
        Smallest seeds tried for the watershed in 2D.
    threshold : float, optional
        All scores are also given at this one; absent: at the one kept with the model, the attribute `threshold` of the
        prediction, if there is one.
    segment : Segmentation
        How a boundary map is made into segments that are written and scored as well.
    """

    prediction: str
    truth: str
    prediction_dataset: str = "volumes/predictions/boundary"
    prediction_kind: str = "auto"
    truth_dataset: str | None = None
    truth_kind: str = "auto"
    ids_dataset: str | None = None
    mask_dataset: str | None = None
    raw_dataset: str = RAW
    z_range: list[int] | None = None
    rand_convention: str = "cremi"
    coarse_step: float = 0.05
    fine_step: float = 0.01
    seed_sizes_px: list[int] = field(default_factory=lambda: list(SEED_SIZES_PX))
    threshold: float | None = None
    segment: Segmentation = field(default_factory=Segmentation)


@dataclass(frozen=True)
class Case:
    """A prediction and its truth on the same voxels.

    Attributes
    ----------
    kind : str
        Of the prediction: "boundary", "mask" or "segmentation".
    prediction : ndarray, shape (Z, Y, X)
        float32 probability, bool mask, or small ids, by `kind`.
    truth : Truth
    raw : ndarray or None
    about : dict
        Where everything came from, for the report.
    threshold : float or None
        The one asked for, else the one kept with the prediction.
    """

    kind: str
    prediction: np.ndarray
    truth: Truth
    raw: np.ndarray | None
    about: dict
    threshold: float | None = None


@dataclass(frozen=True)
class _Grid:
    """The compared voxels: `roi` of `volume`, which others are laid over by their offsets."""

    volume: Volume
    roi: Roi

    def read(self, other):
        """The voxels of `other` that lie there; an error when it does not cover them all."""
        theirs, ours = common_roi(other, self.volume)
        if not ours.contains(self.roi):
            raise Mismatch(
                f"{other.name}: expected it to cover voxels {self.roi.begin}..{self.roi.end} of {self.volume.name}, "
                f"found {ours.begin}..{ours.end}; correct its attribute 'offset' (nm, zyx) or restrict z_range"
            )
        shift = tuple(t - o for t, o in zip(theirs.begin, ours.begin))
        return other.read(self.roi.shift(shift))


def load(settings):
    """Read and pair what is to be compared.

    Parameters
    ----------
    settings : EvaluationSettings

    Returns
    -------
    Case

    Raises
    ------
    data.errors.DataError
        Files or datasets missing or unusable, offsets or resolutions that do not match, settings without a meaning.
    UndefinedVolume
        If a boundary map is not one: values outside [0, 1].
    """
    _check_settings(settings)
    prediction = Volume.open(settings.prediction, settings.prediction_dataset)
    with open_file(settings.truth) as file:
        there = list_datasets(file)
    truth = Volume.open(settings.truth, settings.truth_dataset or (NEURON_IDS if _only_ids(there) else MEMBRANE))
    grid = _Grid(truth, _scored_roi(prediction, truth, settings.z_range))
    ids = settings.ids_dataset or (NEURON_IDS if NEURON_IDS in there else None)
    mask = grid.read(Volume.open(settings.truth, settings.mask_dataset)) if settings.mask_dataset else None

    truth_kind, known = _truth(grid, settings.truth_kind, mask)
    if truth_kind == "membrane" and ids:
        known = replace(known, ids=_ids(grid.read(Volume.open(settings.truth, ids)), mask))
    kept = LazyDataset(settings.prediction, settings.prediction_dataset).attributes
    kind, values = take_prediction(grid.read(prediction), settings.prediction_kind, prediction.name, kept.get("scale"))
    about = {
        "prediction": {"file": settings.prediction, "dataset": settings.prediction_dataset, "taken_as": kind},
        "truth": {"file": settings.truth, "dataset": truth.name.rsplit(":", 1)[1], "taken_as": truth_kind},
        "ids_dataset": truth.name.rsplit(":", 1)[1] if truth_kind == "ids" else ids,
        "mask_dataset": settings.mask_dataset,
        "region": _describe(grid, settings.z_range),
    }
    return Case(kind, values, known, _raw(settings, grid), about, _threshold(settings, kept, kind, prediction.name))


def _threshold(settings, kept, kind, name):
    """The threshold that was chosen beforehand, or None; an error where segments are asked for and cannot be made."""
    given = kept.get("threshold") if settings.threshold is None else settings.threshold
    if settings.segment.method != "none":
        if kind != "boundary":
            raise WrongSetting(f"segment.method={settings.segment.method}: expected a boundary map, found {name} taken "
                               f"as {kind}; say segment.method=none")
        if given is None and settings.segment.threshold is None:
            raise WrongSetting(f"segment.threshold: expected one, since none is kept with {name}; choose it on "
                               "sections that are not scored, and give it as segment.threshold=<number>")
    return None if given is None or kind != "boundary" else float(given)


def take_prediction(values, kind, name, scale=None):
    """What the numbers of a prediction mean, see `EvaluationSettings.prediction_kind`.

    Parameters
    ----------
    values : ndarray, shape (Z, Y, X)
    kind : str
        One of `PREDICTION_KINDS`.
    name : str
        "file:dataset", for messages.
    scale : float, optional
        What integers are multiplied by to give a probability.

    Returns
    -------
    tuple of (str, ndarray)
        The kind, no longer "auto", and the values in its form.

    Raises
    ------
    UndefinedVolume
        If a probability lies outside [0, 1].
    WrongType
        If a segmentation is not of integers.
    """
    integers = values.dtype.kind in "iu"
    if kind == "auto":
        binary = values.dtype == bool or (values.dtype == np.uint8 and scale is None and values.max() <= 1)
        wide = integers and values.dtype.itemsize > 1 and scale is None
        kind = "mask" if binary else "segmentation" if wide else "boundary"
    if kind == "mask":
        return kind, values != 0
    if kind == "segmentation":
        if not integers:
            raise WrongType(f"{name}: expected the integers of a segmentation, found {values.dtype}; "
                            "say prediction_kind=boundary if it is a boundary map")
        return kind, dense_ids(values)
    values = as_float(values) if scale is None else values * np.float32(scale)
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1 + 1e-6:
        raise UndefinedVolume(f"{name}: expected boundary probabilities in [0, 1], found {low:.6g} to {high:.6g}; "
                              "apply softmax, or say prediction_kind=segmentation if these are ids")
    return kind, values


def _check_settings(settings):
    choices = {
        "prediction_kind": PREDICTION_KINDS, "truth_kind": TRUTH_KINDS, "rand_convention": tuple(CONVENTIONS),
    }
    for key, allowed in choices.items():
        found = getattr(settings, key)
        if found not in allowed:
            raise WrongSetting(f"{key}: expected one of {', '.join(allowed)}, found {found!r}")
    coarse_thresholds(settings.coarse_step, settings.fine_step)
    if settings.threshold is not None and not 0 < settings.threshold <= 1:
        raise WrongSetting(f"threshold: expected a number above 0 and at most 1, found {settings.threshold}")
    if not settings.seed_sizes_px or min(settings.seed_sizes_px) < 1:
        raise WrongSetting(f"seed_sizes_px: expected sizes of at least 1, found {list(settings.seed_sizes_px)}")


def _only_ids(there):
    return NEURON_IDS in there and MEMBRANE not in there


def _scored_roi(prediction, truth, z_range):
    """Voxels of `truth` that `prediction` covers, restricted to the sections asked for."""
    _, roi = common_roi(prediction, truth)
    if z_range is None:
        return roi
    if len(z_range) != 2 or not 0 <= z_range[0] < z_range[1] <= truth.shape[0]:
        raise WrongSetting(f"z_range: expected [first, last + 1] within [0, {truth.shape[0]}] of {truth.name}, "
                           f"found {list(z_range)}")
    asked = Roi((z_range[0], 0, 0), (z_range[1] - z_range[0], *truth.shape[1:]))
    if roi.begin[0] > z_range[0] or roi.end[0] < z_range[1]:
        raise Mismatch(f"{prediction.name}: expected sections {z_range[0]} to {z_range[1] - 1} of {truth.name}, "
                       f"found {roi.begin[0]} to {roi.end[0] - 1}; change z_range")
    return roi.intersect(asked)


def _truth(grid, kind, mask):
    """The truth in 2D, and in 3D when it is of ids: (kind, Truth)."""
    labels, name = grid.read(grid.volume), grid.volume.name
    if labels.dtype.kind not in "biu":
        raise WrongType(f"{name}: expected integer labels, found {labels.dtype}; name the labels by truth_dataset=")
    if kind == "auto":
        kind = "membrane" if labels.dtype in (bool, np.uint8) else "ids"
        if kind == "membrane" and np.unique(labels).size > 2:
            raise WrongType(f"{name}: expected two values of membrane labels, found {np.unique(labels).size}; say "
                            "truth_kind=ids if they are ids, truth_kind=membrane if nonzero is membrane")
    target = boundary_target(labels, kind, mask)
    partition = dense_ids(labels) if kind == "ids" else labels == 0
    sections = np.where(target == IGNORE, 0, section_components(partition))
    ids = _ids(labels, mask) if kind == "ids" else None
    return kind, Truth(sections, target == BOUNDARY, target != IGNORE, ids)


def _ids(labels, mask):
    return dense_ids(labels if mask is None else np.where(mask != 0, labels.dtype.type(0), labels))


def _raw(settings, grid):
    """Grey values for the pictures, or None: a report needs none, unless they were asked for by name."""
    missing = None
    for path in (settings.truth, settings.prediction):
        try:
            return grid.read(Volume.open(path, settings.raw_dataset))
        except DataError as error:
            missing = error
    if settings.raw_dataset != RAW:
        raise missing
    return None


def _describe(grid, z_range):
    begin, end = grid.roi.begin, grid.roi.end
    sections = grid.volume.shape[0] if z_range is None else z_range[1] - z_range[0]
    moved = grid.volume.crop(grid.roi)
    return {
        "voxels_of_truth_zyx": [list(begin), list(end)],
        "share_of_truth": grid.roi.size / (sections * math.prod(grid.volume.shape[1:])),
        "offset_zyx_nm": list(moved.offset_zyx),
        "resolution_zyx_nm": list(moved.resolution_zyx) if moved.resolution_known else None,
    }
