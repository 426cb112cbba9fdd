"""Every shipped configuration composes, and what is misspelt is named with what is near."""
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import models
from conf.entry import ConfigError, command, compose, configuration
from conf.schema import SCHEMAS, Evaluate, Infer, Train
from conf.stored import check_unchanged, store
from data import DataError

CONF = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
ISBI = "experiment=isbi2012_recursive"
FILES = ["checkpoint=a", "input=b", "output=c"]


def message(config_name, *overrides):
    with pytest.raises(ConfigError) as error:
        configuration(config_name, overrides)
    return str(error.value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_under_its_own_name_and_its_networks_can_be_built(name):
    experiment = f"experiment={name}"
    for_the_user = [f"{key}=x" for key in OmegaConf.missing_keys(compose("train", [experiment]))]
    settings = configuration("train", [experiment, *for_the_user])
    assert isinstance(settings, Train) and settings.experiment == name
    assert settings.data.stacks and settings.stages
    for i, stage in enumerate(settings.stages.values()):
        assert models.build(stage.model.name, stage.model.options).in_channels == min(i, 1) + 1


@pytest.mark.parametrize("group, place", [
    ("model", "@stages.vd2d.model"), ("trainer", "@stages.vd2d.trainer"), ("augmentation", "@data.augmentation"),
    ("data", ""), ("engine", "")])
def test_every_choice_of_every_group_composes(group, place):
    choices = sorted(p.stem for p in (CONF / group).glob("*.yaml"))
    assert choices
    for choice in choices:
        compose("train", [ISBI, f"{group}{place}={choice}"])


def test_every_group_is_tested_above():
    groups = {p.name for p in CONF.iterdir() if p.is_dir() and list(p.glob("*.yaml"))}
    assert groups == {"model", "trainer", "augmentation", "data", "engine", "experiment"}


def test_values_arrive_typed_in_the_dataclass_of_the_command():
    settings = configuration("infer", [*FILES, "memory_budget_gb=3", "engine=torch", "engine.threads=1"])
    assert isinstance(settings, Infer)
    assert settings.memory_budget_gb == 3.0 and settings.engine.name == "torch" and settings.engine.threads == 1
    assert isinstance(configuration("evaluate", ["prediction=a", "truth=b", "output=c"]), Evaluate)


@pytest.mark.parametrize("override, near", [
    ("data.wrokers=3", "data.workers"),
    ("learning_rate=0.1", "stages.vd2d.trainer.optimiser.learning_rate"),
    ("stages.vd2d.trainer.stepz=3", "stages.vd2d.trainer.steps"),
    ("stages.vd2x.trainer.steps=3", "stages.vd2d.trainer.steps"),
    ("trainer@stages.vd2d.trainr=fast", "trainer@stages.vd2d.trainer"),
    ("trainer@stages.vd2d.trainer=fats", "did you mean fast"),
    ("+data.worker=3", "data.workers"),
    ("stages.vd2d.model.options.activaton=tanh", "stages.vd2d.model.options.activation"),
    ("nothinglikeit=3", "resume"),
])
def test_a_misspelt_key_or_choice_is_named_with_the_near_ones(override, near):
    text = message("train", ISBI, "seed=3", override)
    assert near in text and override.lstrip("+").partition("=")[0].rpartition(".")[2] in text


def test_a_misspelt_experiment_is_named_with_all_there_are():
    text = message("train", "experiment=isbi2012_recursiv")
    assert "did you mean isbi2012_recursive?" in text and all(name in text for name in EXPERIMENTS)
    assert "did you mean experiment?" in message("train", "experimnt=demo")


@pytest.mark.parametrize("override, key", [("seed=x", "seed"), ("data.mirror=7up", "data.mirror"),
                                           ("stages.vd2d.trainer.patch=3", "stages.vd2d.trainer.patch")])
def test_a_value_of_the_wrong_type_is_named_with_its_key(override, key):
    assert message("train", ISBI, override).startswith(f"{override}: {key}: ")


def test_values_without_meaning_are_refused_where_they_stand():
    for override in ("data.augmentation.flip_z_p=4", "stages.vd2d.trainer.optimiser.name=adm",
                     "stages.vd2d.trainer.patch=[0,1,1]", "stages.vd2d.trainer.balance.scaling=sum",
                     "stages.vd2d.trainer.steps=0", "data.standardisation.kind=slice"):
        with pytest.raises(ValueError, match="expected"):
            configuration("train", [ISBI, override])


def test_missing_values_are_named_and_choices_listed():
    assert "input, output" in message("infer", "checkpoint=a")
    assert "isbi2012_recursive" in message("train")


def test_a_stored_configuration_is_the_base_of_resuming(tmp_path):
    begun = configuration("train", [ISBI, "seed=7", "stages.vd2d.trainer.max_minutes=null"])
    store(begun, tmp_path)
    resume = f"resume={tmp_path}"
    again = configuration("train", [resume, "stages.vd2d.trainer.steps=9"])
    assert again.seed == 7 and again.stages["vd2d"].trainer.steps == 9 and again.resume == str(tmp_path)
    assert again.stages["vd2d"].trainer.max_minutes is None
    check_unchanged(again)
    check_unchanged(configuration("train", [resume, ISBI]))
    assert "data.workers" in message("train", resume, "data.worker=3")
    for override in ("seed=8", "stages.vd2d.model.name=N4", "experiment=demo", "data.recursion_scaling=stack",
                     "data.stacks.isbi2012.path=other.h5",
                     "stages.vd2d.model.options.activation=tanh", "stages.vd2d.trainer.optimiser.name=sgd",
                     "init=zoo/isbi2012_vd2d3d"):
        with pytest.raises(ConfigError, match="was begun with"):
            check_unchanged(configuration("train", [resume, override]))


def test_resuming_what_is_no_run_says_so(tmp_path):
    assert "runs/<name>" in message("train", f"resume={tmp_path}")


@command("infer")
def thing(settings):
    """A command that fails as its settings say."""
    if settings.overwrite:
        raise KeyError("a bug")
    if settings.uint8:
        raise DataError("a.h5:raw: wrong")
    print(settings.checkpoint)


def test_a_command_ends_with_status_1_and_one_line_when_the_user_can_mend_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["thing.py", *arguments])
        thing()

    run(*FILES)
    assert capsys.readouterr().out == "a\n"
    with pytest.raises(SystemExit) as end:
        run(*FILES, "uint8=true")
    assert end.value.code == "error: a.h5:raw: wrong"              # the interpreter prints it and ends with status 1
    with pytest.raises(SystemExit, match="did you mean checkpoint"):
        run("checkpont=a")
    with pytest.raises(KeyError):
        run(*FILES, "overwrite=true")
    run("--cfg", "job")
    assert "memory_budget_gb: 2.0" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())                            # nothing of Hydra's is left behind


def test_each_command_has_a_file():
    assert all((CONF / f"{name}.yaml").is_file() for name in SCHEMAS)
