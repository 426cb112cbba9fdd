"""Trained networks in one safetensors file: judges, whose mean counts, and an actor."""
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from znn.runtime.files import replacing
from znn.tuner.agent.network import Actor, Judges
from znn.tuner.observation import SIZE

SHIPPED = Path(__file__).with_name("policy.safetensors")


class UnusableWeights(ValueError):
    """A file is not of networks that read observations of this version."""


def save(path, judges, actor):
    """Write networks, whole or not at all."""
    tensors = {f"{name}.{key}": value.contiguous() for name, net in (("judges", judges), ("actor", actor))
               for key, value in net.state_dict().items()}
    with replacing(path) as written:
        save_file(tensors, written, {"judges": str(len(judges.members))})


def load(path=SHIPPED):
    """Judges and actor.

    Raises
    ------
    UnusableWeights
        If they read another observation than this version makes, or the file is none of `save`.
    OSError
        If there is no such file.
    """
    try:
        with safe_open(path, "pt") as file:
            count = int(file.metadata()["judges"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        judges, actor = Judges(count), Actor()
        for name, net in (("judges", judges), ("actor", actor)):
            net.load_state_dict({key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(name)})
    except FileNotFoundError:
        raise
    except Exception as error:  # safetensors, a missing key, or tensors of other shapes
        raise UnusableWeights(f"{path}: expected the networks of a policy that reads {SIZE} numbers ({error}); "
                              "train one by python -m znn.tuner.agent.train") from error
    return judges.eval(), actor.eval()
