"""Trained networks that come with the package: `zoo/NAME` stands for a checkpoint, NAME.md beside it is its card."""
from pathlib import Path

from models.errors import choose

PREFIX = "zoo/"
FOLDER = Path(__file__).parent


def names():
    """What there is, as it is given for a checkpoint: list of str."""
    return sorted(PREFIX + path.stem for path in FOLDER.glob("*.safetensors"))


def located(checkpoint):
    """The file of a checkpoint.

    Parameters
    ----------
    checkpoint : str
        "zoo/NAME", or the path of a file, which is given back.

    Returns
    -------
    str

    Raises
    ------
    ModelError
        If there is no such network in the zoo; it names those that there are.
    """
    if not checkpoint.startswith(PREFIX) or Path(checkpoint).exists():
        return checkpoint
    return choose("network", checkpoint, {name: str(FOLDER / f"{name.removeprefix(PREFIX)}.safetensors")
                                          for name in names()})
