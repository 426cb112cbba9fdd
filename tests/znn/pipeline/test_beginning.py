"""A run that begins with trained weights: they arrive, they are judged too, and what does not fit is refused."""
import csv

import pytest
import torch

from tests.znn.pipeline.small_run import Small, data, recursion, trainer
from znn.pipeline import checkpoint
from znn.pipeline.errors import CheckpointError
from znn.pipeline.interruption import Interruption
from znn.pipeline.monitor import Monitor
from znn.pipeline.optimiser import Optimiser

ABOUT = {"normalisation": {"kind": "section"}, "recursion_scaling": "fixed"}
STILL = Optimiser(learning_rate=1e-30)


def write(path, networks, **meta):
    """A checkpoint of networks by the name of their stage, with weights of their own."""
    tensors = {f"{stage}/{key}": value for stage, network in networks.items()
               for key, value in network.state_dict().items()}
    stages = [{"name": stage, "model": "Small", "options": {}} for stage in networks]
    checkpoint.save(path, tensors, ABOUT | {"stages": stages} | meta)
    return tensors


def small(recursive, seed):
    torch.manual_seed(seed)
    return Small(recursive)


def pair():
    return {"plain": small(False, 11), "again": small(True, 12)}


def train(run):
    return checkpoint.load(run.run(Monitor(Interruption(), hidden=True)))[0]


def test_both_stages_begin_with_the_weights_of_their_names(tmp_path):
    given = write(tmp_path / "given.safetensors", pair())
    run = recursion(tmp_path / "run", tmp_path, trainer(1, optimiser=STILL), trainer(1, optimiser=STILL),
                    init=tmp_path / "given.safetensors")
    kept = train(run)
    assert kept.keys() == given.keys() and all(torch.equal(kept[key], given[key]) for key in given)


def test_a_stage_that_the_checkpoint_has_not_begins_from_the_one_before(tmp_path):
    given = write(tmp_path / "given.safetensors", {"plain": small(False, 11)})
    run = recursion(tmp_path / "run", tmp_path, trainer(1, optimiser=STILL), trainer(1, optimiser=STILL),
                    init=tmp_path / "given.safetensors")
    kept = train(run)
    assert torch.equal(kept["again/first.weight"], given["plain/first.weight"])
    assert torch.equal(kept["again/second.weight"], run.network(1).second.weight)


def test_the_weights_it_began_with_are_kept_when_none_are_better(tmp_path):
    given = write(tmp_path / "given.safetensors", pair())
    ruin = trainer(4, optimiser=Optimiser(name="sgd", learning_rate=1e4, momentum=0.0), clip_norm=1.0, select_by="loss")
    kept = train(recursion(tmp_path / "run", tmp_path, ruin, ruin, init=tmp_path / "given.safetensors"))
    assert all(torch.equal(kept[key], given[key]) for key in given)
    with open(tmp_path / "run" / "curve.csv", newline="") as file:
        losses = [(int(row["step"]), float(row["select_loss"])) for row in csv.DictReader(file)
                  if row["stage"] == "plain" and row["select_loss"]]
    assert [step for step, _ in losses] == [0, 2, 4] and losses[0] == min(losses, key=lambda point: point[1])


def test_without_trained_weights_nothing_is_judged_before_the_first_step(tmp_path):
    train(recursion(tmp_path / "run", tmp_path))
    with open(tmp_path / "run" / "curve.csv", newline="") as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"2", "4"}


@pytest.mark.parametrize("networks, meta, text", [
    ({"plain": small(True, 0)}, {}, "stage plain: the weights do not fit Small: .*found first_r.weight"),
    ({"again": small(False, 0)}, {}, "stage again: the weights do not fit Small: .*; first_r.weight .* found none"),
    ({"other": small(False, 0)}, {}, r"expected weights of a stage of this run \(plain, again\), found other; choose"),
    ({}, {}, "found no stage"),
    (pair(), {"normalisation": {"kind": "volume"}}, "data.standardisation {'kind': 'volume'}, found {'kind': 'sec"),
    (pair(), {"recursion_scaling": "stack"}, "data.recursion_scaling stack, found fixed; give this run the same"),
])
def test_what_does_not_fit_is_refused_before_anything_is_trained(tmp_path, networks, meta, text):
    data(tmp_path)
    write(tmp_path / "given.safetensors", networks, **meta)
    with pytest.raises(CheckpointError, match=text) as error:
        recursion(tmp_path / "run", tmp_path, init=tmp_path / "given.safetensors")
    assert "init=" in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        recursion(tmp_path / "run", tmp_path, init=tmp_path / "nothing.safetensors")
