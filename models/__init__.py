"""The networks: each in one short file that reads as its table, built by name, started from one another by name."""
import inspect

import znn.nn  # noqa: F401  before torch, since it decides how the threads of OpenMP wait

# isort: split
import torch

from models.errors import ModelError, choose
from models.n4 import N4
from models.table import Conv, DenseNet, Drop, Pool
from models.vd2d import VD2D
from models.vd2d3d import VD2D3D

__all__ = ["N4", "NETWORKS", "VD2D", "VD2D3D", "Conv", "DenseNet", "Drop", "ModelError", "Pool", "build", "transfer"]

NETWORKS = {"N4": N4, "VD2D": VD2D, "VD2D3D": VD2D3D}


def build(name, options=None):
    """A fresh network by name.

    Parameters
    ----------
    name : str
        A key of `NETWORKS`.
    options : mapping, optional
        Keyword arguments of the network, such as ``{"recursive": True, "activation": "tanh"}``.

    Returns
    -------
    torch.nn.Module
        With attributes `in_channels` and `field_of_view` (z, y, x).

    Raises
    ------
    ModelError
        If the name or an option is unknown, or an option has a value that the network does not take.
    """
    network, options = choose("network", name, NETWORKS), dict(options or {})
    known = inspect.signature(network).parameters
    for option in options:
        choose(f"option of {name}", option, known)
    try:
        return network(**options)
    except ValueError as error:
        raise ModelError(f"{name} cannot be built from {options}: {error}") from error


def transfer(from_state, into):
    """Start a network from another's weights, layer by layer, where names and shapes agree.

    VD2D into VD2D3D copies conv1a to conv3b; the map's stream and the 3D layers, whose kernels differ, stay fresh.

    Parameters
    ----------
    from_state : dict of str to torch.Tensor
        The other network's `state_dict`.
    into : torch.nn.Module
        Changed in place.

    Returns
    -------
    list of str
        Names of the layers that were copied, in the network's order.

    Raises
    ------
    ModelError
        If no layer agrees.
    """
    copied = []
    for name, layer in into.named_modules():
        own = {f"{name}.{key}": tensor for key, tensor in layer.named_parameters(recurse=False)}
        if own and all(key in from_state and from_state[key].shape == tensor.shape for key, tensor in own.items()):
            with torch.no_grad():
                for key, tensor in own.items():
                    tensor.copy_(from_state[key])
            copied.append(name)
    if not copied:
        raise ModelError(f"no layer agrees in name and shape: weights hold {sorted(from_state)}, "
                         f"the network has {sorted(into.state_dict())}; start from a network of the same family")
    return copied
