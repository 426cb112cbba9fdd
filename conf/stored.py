"""The configuration that a run keeps in its folder, and what of it may change when the run goes on."""
from dataclasses import asdict
from pathlib import Path

from omegaconf import OmegaConf

from conf.entry import RUN_CONFIG, ConfigError, configuration
from data.files import replacing
from znn.pipeline.lock import LOCK

# What the weights so far depend on; the rest (steps, minutes, rates, folders, engine) may be given anew.
FROZEN = ("experiment", "init", "seed", "stages.*.model", "stages.*.start_from_previous", "stages.*.folds",
          "stages.*.trainer.optimiser.name", "data.stacks", "data.standardisation", "data.recursion_scaling")
HEADER = """\
# Settings of this run, all of them. Go on with:  python train.py resume=<this folder>
defaults: [train_schema, _self_]
"""


def store(settings, folder):
    """Write the settings into the folder of their run, as a configuration that Hydra composes from."""
    path = Path(folder) / f"{RUN_CONFIG}.yaml"
    with replacing(path) as partial:
        partial.write_text(HEADER + OmegaConf.to_yaml(OmegaConf.create(asdict(settings) | {"resume": None})))


def take_back(folder):
    """Remove the folder of a run that holds nothing but its settings and its lock, so that a corrected command may use
    the name."""
    kept = [Path(folder) / name for name in (LOCK, f"{RUN_CONFIG}.yaml")]
    if set(Path(folder).iterdir()) <= set(kept):
        for path in kept:
            path.unlink(missing_ok=True)
        Path(folder).rmdir()


def check_unchanged(settings):
    """Raise `ConfigError` when a run is asked to go on with another network, seed or stack than it was begun with."""
    stored = configuration("train", [f"resume={settings.resume}"])
    before, now = (OmegaConf.structured(s) for s in (stored, settings))
    for key in _frozen_keys(before):
        old, new = (OmegaConf.select(cfg, key) for cfg in (before, now))
        if old != new:
            raise ConfigError(f"{key}: the run in {settings.resume} was begun with {old}, found {new}; "
                              f"leave it out to go on, or start a new run with name=<another>")
    return stored


def _frozen_keys(cfg):
    for key in FROZEN:
        yield from [key.replace("*", stage) for stage in cfg.stages] if "*" in key else [key]
