"""Failures of choosing and filling a network."""


class ModelError(ValueError):
    """A network or one of its options is unknown, or weights do not fit; the message lists what there is."""


def choose(what, value, choices):
    """`choices[value]`, or a `ModelError` that names the choices."""
    if value not in choices:
        raise ModelError(f"{what} {value!r} is unknown: choose one of {', '.join(map(str, choices))}")
    return choices[value]
