"""Switches of the engine that are variables of the environment: all understand the same words."""
import functools
import os

WORDS = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}


def on(name):
    """Whether the switch is on; it is unless set.

    Raises
    ------
    ValueError
        If it is set to what is no word for on or off.
    """
    return _on(name, os.environ.get(name))


@functools.lru_cache(maxsize=64)
def _on(name, text):
    found = word(text or "on")
    if found is None:
        raise ValueError(f"{name}={text}: expected one of {', '.join(WORDS)}; unset, it is on")
    return found


def word(text):
    """True or False for a word, in capitals or not; None for anything else."""
    return WORDS.get(text.strip().lower())
