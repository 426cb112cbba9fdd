"""Failures of the pipeline that a user can mend; the message says what, where, expected against found, and how."""


class PipelineError(ValueError):
    """Base of every error that `znn.pipeline` raises on purpose; commands print it without a traceback."""


class WrongSetting(PipelineError):
    """A setting has a value that means nothing."""


class CheckpointError(PipelineError):
    """A checkpoint is missing, damaged, or does not fit the network it is loaded into."""


class NonFiniteLoss(PipelineError):
    """Training met a loss that is not a finite number; carries the coordinates of the patch."""


class OutputExists(PipelineError):
    """The output is already there, or is the input itself; nothing was written."""


class OutputNotWritable(PipelineError):
    """The folder of the output does not exist or may not be written to."""


class RunInUse(PipelineError):
    """Another process works in the folder of a run."""


class UndefinedVolume(PipelineError):
    """The volume cannot be processed as asked: too small, not finite, or of the wrong rank."""


class BudgetTooSmall(PipelineError):
    """Not even the smallest block fits the memory that may be used."""


class PartialMismatch(PipelineError):
    """A partial file is there, but from another checkpoint, input or setting, or it cannot be read."""


class NonFiniteMap(PipelineError):
    """A network's output is not a finite number somewhere."""


class PrecisionLost(PipelineError):
    """Narrow numbers change the map more than is allowed."""


class Interrupted(PipelineError):
    """The run was asked to stop and did; what is finished is kept."""


def one_of(what, value, choices):
    """Raise `WrongSetting` unless `value` is one of `choices`."""
    if value not in choices:
        raise WrongSetting(f"{what}: expected one of {', '.join(map(str, choices))}, found {value!r}")


def not_negative(what, value):
    """Raise `WrongSetting` unless `value` is zero or above."""
    if not value >= 0:
        raise WrongSetting(f"{what}: expected 0 or a number above it, found {value!r}")


def positive(what, value):
    """Raise `WrongSetting` unless `value` is above zero."""
    if not value > 0:
        raise WrongSetting(f"{what}: expected a number above 0, found {value!r}")
