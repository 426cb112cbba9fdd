"""Networks that come trained: what is named loads, has a card, and says nothing of the machine it was trained on."""
import re

import pytest

import models
from models import zoo
from models.errors import ModelError
from znn.pipeline.checkpoint import load_stages


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_loads_and_has_a_card(name):
    stages, meta = load_stages(zoo.located(name), models.build)
    assert [stage[0] for stage in stages] == [stage["name"] for stage in meta["stages"]]
    assert 0 < meta["threshold"] <= 1 and meta["resolution_zyx"] and not meta["config"]["data"]["root"].startswith("/")
    card = (zoo.FOLDER / f"{name.removeprefix(zoo.PREFIX)}.md").read_text()
    for part in ("Data", "Recipe", "Scores", "Limits"):
        assert f"**{part}" in card
    assert f"checkpoint={name}" in card and re.search(r"non-commercial", card)


def test_there_is_the_pair_of_the_paper():
    assert "zoo/isbi2012_vd2d3d" in zoo.names()


def test_files_are_left_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo.located("runs/x/final.safetensors") == "runs/x/final.safetensors"
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine").touch()
    assert zoo.located("zoo/mine") == "zoo/mine"


def test_a_name_that_there_is_not():
    with pytest.raises(ModelError, match=r"network 'zoo/nothing' is unknown: choose one of .*zoo/isbi2012_vd2d3d"):
        zoo.located("zoo/nothing")
