"""The labelled stacks of a training: which sections train, which select, opened and checked against each other."""
from dataclasses import dataclass, field
from pathlib import Path

from data import Augmentation, Roi, Source, Standardisation, Volume, common_roi, standardised
from znn.pipeline.errors import PipelineError, WrongSetting


@dataclass
class StackSettings:
    """One labelled stack; relative paths start at the `root` of `TrainingData`.

    path, raw : HDF5 file and the dataset of its grey values
    label_path, labels : file (the same one unless given) and dataset of the labels
    kind : "membrane" (nonzero is membrane) or "ids" (one id a neuron)
    mask : dataset of the label file, nonzero where labels are not to be used
    train_z, select_z : [first, last + 1] sections of the grey values to train on, and to choose the best weights by;
        absent: all sections train, none selects
    """

    path: str
    raw: str = "volumes/raw"
    label_path: str | None = None
    labels: str = "volumes/labels/membrane"
    kind: str = "membrane"
    mask: str | None = None
    train_z: list[int] | None = None
    select_z: list[int] | None = None


@dataclass
class TrainingData:
    """What is trained on, and how patches are made of it.

    root : folder that relative paths start at
    mirror : also draw patches whose context lies outside of the training sections, mirrored
    recursion_scaling : how the map of one stage is scaled to [-1, 1] for the next: "fixed" (2 p - 1) or "stack" (its
        own extremes)
    workers : processes that prepare patches; 0: the main one, which takes one percent of a step's time
    """

    root: str = "."
    stacks: dict[str, StackSettings] = field(default_factory=dict)
    standardisation: Standardisation = field(default_factory=Standardisation)
    augmentation: Augmentation = field(default_factory=Augmentation)
    mirror: bool = False
    recursion_scaling: str = "fixed"
    workers: int = 0


@dataclass(frozen=True)
class LabelledStack:
    """A stack ready for training.

    Attributes
    ----------
    name : str
    raw : Volume
        Grey values of the sections that train or select (and those between); no others are read.
    image : Volume
        The same, standardised.
    training : Source
        Reads nothing outside of the training sections.
    selection : Source or None
        The held-out sections, in the same voxels.
    """

    name: str
    raw: Volume
    image: Volume
    training: Source
    selection: Source | None


def open_stacks(settings):
    """The stacks of a `TrainingData`, in order.

    Raises
    ------
    data.DataError
        If a file, a dataset or a pair of volumes is not as it should be.
    PipelineError
        If there is no stack, a range of sections is not in the volume, or training and selection share sections.
    """
    if not settings.stacks:
        raise PipelineError("data.stacks: expected at least one labelled stack, found none; "
                            "choose data=<name of a file in conf/data>")
    return [_open_stack(name, stack, settings) for name, stack in settings.stacks.items()]


def _open_stack(name, stack, settings):
    root = Path(settings.root)
    whole = Volume.open(root / stack.path, stack.raw)
    label_path = root / (stack.label_path or stack.path)
    labels = Volume.open(label_path, stack.labels)
    mask = None if stack.mask is None else Volume.open(label_path, stack.mask)
    common_roi(whole, labels)
    train, select = _sections(name, stack, whole)
    first, last = min(r[0] for r in (train, select) if r), max(r[1] for r in (train, select) if r)
    raw = whole.crop(_slab(whole, first, last))
    image = standardised(raw, settings.standardisation)
    slabs = [z and _slab(raw, z[0] - first, z[1] - first) for z in (train, select)]
    sources = [slab and Source(image, labels, stack.kind, mask, roi=slab) for slab in slabs]
    return LabelledStack(name, raw, image, *sources)


def _slab(volume, begin, end):
    return Roi((begin, 0, 0), (end - begin, *volume.shape[1:]))


def _sections(name, stack, volume):
    """(training, selection) as pairs of sections, the second None without selection."""
    train, select = stack.train_z or [0, volume.shape[0]], stack.select_z
    for key, z in (("train_z", train), ("select_z", select)):
        if z is not None and not (len(z) == 2 and 0 <= z[0] < z[1] <= volume.shape[0]):
            raise WrongSetting(f"data.stacks.{name}.{key}: expected [first, last + 1] within the sections "
                               f"0..{volume.shape[0]} of {volume.name}, found {list(z)}")
    if select is not None and max(train[0], select[0]) < min(train[1], select[1]):
        raise WrongSetting(f"data.stacks.{name}: expected sections of their own for training and selection, found "
                           f"train_z {list(train)} and select_z {list(select)}, which overlap")
    return train, select


def labelled_region(source):
    """The labelled voxels of a source, as a region of `source.raw`."""
    return source.region() if source.roi is None else source.region().shift(source.roi.begin)


def window(source, side):
    """The middle section of the labelled region, at most `side` voxels wide and high, as a region of `source.raw`."""
    region = labelled_region(source)
    size = [min(side, n) for n in region.shape[1:]]
    corner = [b + (n - s) // 2 for b, n, s in zip(region.begin[1:], region.shape[1:], size)]
    return Roi((region.begin[0] + region.shape[0] // 2, *corner), (1, *size))


def target_in(source, region):
    """Target (Z, Y, X) uint8 of a region of `source.raw`."""
    return source.target().read(region if source.roi is None else region.shift(-b for b in source.roi.begin))
