"""Where the training of a stage is, as numbers that a checkpoint keeps."""
from dataclasses import dataclass, field, fields

from znn.pipeline.errors import CheckpointError


@dataclass
class Progress:
    """Where a stage is; plain numbers, for JSON.

    step : updates made
    seconds : time spent on the stage, over all sessions
    waited : part of it that went into waiting for patches
    selected_at, previewed_at : step of the last validation and preview, -1 before the first
    best, best_by, best_step : score of the best validation so far, which score that is, and when
    window : sums since the last point of the learning curve
    """

    step: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    selected_at: int = -1
    previewed_at: int = -1
    best: float | None = None
    best_by: str | None = None
    best_step: int | None = None
    window: dict = field(default_factory=dict)


def check_state(state, path):
    """Make sure of what the header of a checkpoint says about a run: ``{"stage": name, "progress": {...}}``.

    Returns
    -------
    str
        The stage.

    Raises
    ------
    CheckpointError
        If a part is missing, or is not what `Progress` holds.
    """
    progress = state.get("progress") if isinstance(state, dict) else None
    if not isinstance(progress, dict) or not isinstance(state.get("stage"), str):
        raise _damaged(path, f"a stage and its progress, found {state!r}")
    kinds = {f.name: f.type for f in fields(Progress)}
    wrong = [f"no {name}" for name in kinds if name not in progress]
    wrong += [f"{name}={value!r}" for name, value in progress.items()
              if name not in kinds or not _is_of(value, kinds[name])]
    if not wrong:
        wrong = [f"window.{name}={value!r}" for name, value in progress["window"].items() if not _is_of(value, float)]
        wrong += [f"step={progress['step']}"] * (progress["step"] < 0)
    if wrong:
        raise _damaged(path, f"the numbers of a stage's progress, found {', '.join(wrong)}")
    return state["stage"]


def _is_of(value, kind):
    """Whether JSON gave a value of a kind; a whole number may stand for a float."""
    return isinstance(value, kind) or (type(value) is int and isinstance(0.0, kind))


def _damaged(path, reason):
    return CheckpointError(f"{path}: its header is damaged: expected {reason}; begin the run anew under another name")
