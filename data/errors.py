"""What can be wrong with data; the message says what, where, expected against found, and how to mend it."""


class DataError(ValueError):
    """Base of every error that `data` raises on purpose; commands print it without a traceback."""


class MissingFile(DataError):
    """There is no such file."""


class UnreadableFile(DataError):
    """The file is there but is not HDF5, is truncated, or may not be read."""


class LockedFile(DataError):
    """Somebody holds the file open for writing, or the file system cannot lock."""


class MissingDataset(DataError):
    """The file has no such dataset; the message lists what it has."""


class MissingFilter(DataError):
    """The dataset is compressed with a filter that this installation of HDF5 does not have."""


class WrongRank(DataError):
    """A volume has three axes (z, y, x); this array has not."""


class WrongType(DataError):
    """The values are not numbers, or not the kind of numbers that is needed here."""


class EmptyVolume(DataError):
    """The volume has no voxels, or no labelled ones where labels are needed."""


class NotFinite(DataError):
    """The volume contains NaN or infinity."""


class WrongMetadata(DataError):
    """`resolution` or `offset` is not three usable numbers."""


class OutsideVolume(DataError):
    """A region was asked for that the volume does not contain."""


class Mismatch(DataError):
    """Two volumes that belong together do not fit: resolution, offset, or extent."""


class NoValidPosition(DataError):
    """No patch of the asked size fits into the data."""


class WrongSetting(DataError):
    """A parameter of sampling, augmentation, standardisation or targets has no meaning."""


class NotWritable(DataError):
    """The file could not be written; nothing was left behind."""


class WorkerDied(DataError):
    """A process that prepares patches ended without a result."""
