"""Trained weights that a run begins with, in place of random ones: fine-tuning."""
from znn.pipeline import checkpoint
from znn.pipeline.errors import CheckpointError

# What weights were learnt on; with another of these the same image is another input.
INPUTS = {"normalisation": "data.standardisation", "recursion_scaling": "data.recursion_scaling"}


def initial_states(path, stages, about):
    """Weights of the stages of a checkpoint that a run has too, by name.

    Whether they fit the networks of the run is checked where these are made, by `recursion.Recursion`.

    Parameters
    ----------
    path : str or Path
        A checkpoint, of one stage or more.
    stages : iterable of str
        Names of the stages of the run.
    about : dict
        ``normalisation`` and ``recursion_scaling`` of the run, as they are kept in a checkpoint.

    Returns
    -------
    dict of str to (dict of str to torch.Tensor)
        The state of each stage that both have; the statistics of the grey values are not among them, they are always
        those of the data at hand.

    Raises
    ------
    CheckpointError
        If no stage is in both, or the checkpoint's networks were trained on inputs prepared in another way.
    """
    tensors, meta = checkpoint.load(path)
    there = [stage["name"] for stage in meta.get("stages", [])]
    common = [name for name in stages if name in there]
    if not common:
        raise CheckpointError(f"init={path}: expected weights of a stage of this run ({', '.join(stages)}), found "
                              f"{', '.join(there) or 'no stage'}; choose an experiment with stages of those names, or "
                              "another checkpoint")
    for key, setting in INPUTS.items():
        if meta.get(key) != about[key]:
            raise CheckpointError(f"init={path}: its networks were trained with {setting} {meta.get(key)}, found "
                                  f"{about[key]}; give this run the same")
    return {name: checkpoint.stage_tensors(tensors, name) for name in common}
