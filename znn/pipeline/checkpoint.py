"""Checkpoints: tensors as safetensors, everything else as JSON in the header; no pickle, written whole or not at all.

``final.safetensors`` of a training run holds its stages in order, tensors named ``<stage>/<parameter>``::

    {"format": "znn-checkpoint-1", "version": ..., "normalisation": {...}, "recursion_scaling": "fixed",
     "resolution_zyx": [40, 4, 4], "config": {...},
     "stages": [{"name": "vd2d", "model": "VD2D", "options": {...}},
                {"name": "vd2d3d", "model": "VD2D3D", "options": {"recursive": true}}]}
"""
import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from data.files import replacing
from znn import __version__
from znn.pipeline.errors import CheckpointError

FORMAT = "znn-checkpoint-1"
HEADER = "znn"
NEEDED, NEEDED_OF_STAGE = ("normalisation", "recursion_scaling"), ("name", "model", "options")


def save(path, tensors, meta):
    """Write tensors and what belongs to them, under a temporary name that is then renamed.

    Parameters
    ----------
    path : str or Path
        Replaced when it exists.
    tensors : dict of str to torch.Tensor
    meta : dict
        Anything JSON can say; ``format`` and ``version`` are added.

    Raises
    ------
    CheckpointError
        If the file cannot be written; what was there before is untouched.
    """
    path = Path(path)
    header = json.dumps({"format": FORMAT, "version": __version__} | meta, sort_keys=True)
    try:
        # A copy of its own for each: safetensors refuses tensors that share memory.
        copies = {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()}
        with replacing(path, durable=True) as partial:
            save_file(copies, partial, {HEADER: header})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot write the checkpoint ({error}); check that the folder exists, "
                              "may be written to, and has space") from error


def load(path):
    """Read a checkpoint.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    tensors : dict of str to torch.Tensor
    meta : dict

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or not one that `save` wrote.
    """
    if not os.path.isfile(path):
        raise CheckpointError(f"{path}: no such file; expected a checkpoint that train.py wrote, "
                              "such as runs/<name>/final.safetensors")
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get(HEADER)
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, found something else or a damaged one ({error}); "
                              "give a checkpoint that train.py wrote") from error
    if header is None:
        raise CheckpointError(f"{path}: the header does not say which networks the tensors belong to; "
                              "expected a checkpoint that train.py wrote, found another safetensors file")
    try:
        meta = json.loads(header)
        written = {key: meta[key] for key in ("format", "version")}
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: its header is damaged or not complete ({type(error).__name__}: {error}); "
                              "give a checkpoint that train.py wrote") from error
    if written["format"] != FORMAT:
        raise CheckpointError(f"{path}: expected format {FORMAT}, found {written['format']}; "
                              f"it was written by version {written['version']} of this package, this is {__version__}")
    return tensors, meta


def stage_tensors(tensors, stage):
    """The state of one stage: the tensors named ``<stage>/...``, without that prefix."""
    return {key.partition("/")[2]: tensor for key, tensor in tensors.items() if key.partition("/")[0] == stage}


def fill(network, state, name):
    """Load a state into a network in place.

    Parameters
    ----------
    network : torch.nn.Module
    state : dict of str to torch.Tensor
    name : str
        For the message: where the state comes from.

    Raises
    ------
    CheckpointError
        If a name or a shape differs; the network is untouched.
    """
    own = network.state_dict()
    wrong = [f"{key} {tuple(own[key].shape)} found {tuple(state[key].shape)}"
             for key in own if key in state and own[key].shape != state[key].shape]
    wrong += [f"{key} {tuple(own[key].shape)} found none" for key in own if key not in state]
    wrong += [f"found {key}, which {type(network).__name__} has not" for key in state if key not in own]
    if wrong:
        raise CheckpointError(f"{name}: the weights do not fit {type(network).__name__}: expected "
                              f"{'; '.join(wrong[:3])}{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}; "
                              "use the network that the checkpoint was trained with")
    network.load_state_dict(state)


def load_stages(path, build):
    """The trained networks of a checkpoint, in the order in which one feeds the next.

    Parameters
    ----------
    path : str or Path
    build : callable
        ``build(model_name, options)`` makes a fresh network, such as `models.build`.

    Returns
    -------
    stages : list of (str, torch.nn.Module)
        Names and networks in evaluation mode.
    meta : dict

    Raises
    ------
    CheckpointError
    """
    tensors, meta = load(path)
    if not meta.get("stages"):
        raise CheckpointError(f"{path}: expected at least one stage, found none; this may be the state of a run: "
                              "infer needs its best.safetensors or final.safetensors")
    _check_complete(path, meta)
    stages = []
    for stage in meta["stages"]:
        random_state = torch.get_rng_state()
        try:
            network = build(stage["model"], stage["options"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: its stage {stage['name']!r} cannot be built: {error}") from error
        torch.set_rng_state(random_state)
        fill(network, stage_tensors(tensors, stage["name"]), f"{path}: stage {stage['name']}")
        stages.append((stage["name"], network.eval()))
    return stages, meta


def _check_complete(path, meta):
    """Raise `CheckpointError` unless the header says all that inference needs."""
    stages = meta["stages"]
    missing = [key for key in NEEDED if key not in meta]
    if not (isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages)):
        missing.append("stages as a list of names, models and options")
    else:
        missing += [f"stages[{i}].{key}" for i, stage in enumerate(stages)
                    for key in NEEDED_OF_STAGE if key not in stage]
    if missing:
        raise CheckpointError(f"{path}: its header is not complete: expected {', '.join(missing)}, found none; "
                              "give a checkpoint that train.py wrote")
