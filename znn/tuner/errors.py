"""Failures of tuning that a user can mend; the message says what, expected against found, and how."""
import difflib


class TuningError(ValueError):
    """Something that was asked for is not there or not possible; commands print it without a traceback."""


def one_of(what, value, choices):
    """Raise `TuningError` unless `value` is one of `choices`, naming the near ones."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise TuningError(f"{what}={value}: {hint}There are: {', '.join(choices)}")
