from pathlib import Path

import pytest
from omegaconf import OmegaConf

import models

CHOICES = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))


@pytest.mark.parametrize("path", CHOICES, ids=lambda path: path.stem)
def test_every_model_of_the_configuration_builds_as_its_name_says(path):
    cfg = OmegaConf.to_container(OmegaConf.load(path))
    net = models.build(cfg["name"], cfg["options"])
    name, *modifiers = path.stem.split("_")
    assert cfg["name"].lower() == name
    assert net.in_channels == (2 if "recursive" in modifiers else 1)
    assert cfg["options"]["activation"] == ("tanh" if "tanh" in modifiers else "relu")


def test_every_network_is_a_choice():
    assert {OmegaConf.load(path).name for path in CHOICES} == set(models.NETWORKS)
