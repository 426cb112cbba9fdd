"""Learning rates by hand, and optimisers whose state survives a change of process."""
import math

import pytest
import torch

from znn.pipeline.errors import CheckpointError, WrongSetting
from znn.pipeline.optimiser import Optimiser, Schedule, optimiser_tensors, restore_optimiser


def test_annealing_as_published():
    schedule = Schedule("anneal", factor=0.997, every_steps=100)
    assert [schedule.scale(step, 0) for step in (0, 99, 100, 250)] == [1, 1, 0.997, 0.997 ** 2]
    assert 0.01 * schedule.scale(99_999, 0) == pytest.approx(0.000497122, rel=1e-4)     # a published net's own record


def test_cosine_falls_by_progress_and_warm_up_rises_by_steps():
    schedule = Schedule("cosine", final_fraction=0.1, warmup_steps=4)
    assert [schedule.scale(step, 0) for step in (0, 1, 3, 4, 9)] == pytest.approx([0.2, 0.4, 0.8, 1, 1])
    assert schedule.scale(100, 0.5) == pytest.approx(0.55)
    assert schedule.scale(100, 1) == schedule.scale(100, 2) == pytest.approx(0.1)
    assert Schedule("constant").scale(10 ** 6, 1) == 1


def test_sgd_moves_as_published():
    # V <- m V - eta g; W <- W + V
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    sgd, v, w = Optimiser("sgd", 0.1, 0.9).over([weight]), 0.0, weight.detach().clone()
    for k in range(3):
        weight.grad = torch.full_like(weight, k + 1)
        sgd.step()
        v = 0.9 * v - 0.1 * (k + 1)
        w = w + v
    assert torch.allclose(weight, w)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_state_moves_to_another_optimiser_exactly(name):
    def made():
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 2)
        return network, Optimiser(name, 0.01, weight_decay=0.1).over(network.parameters())

    def step(network, optimiser, k):
        torch.manual_seed(k)
        optimiser.zero_grad()
        network(torch.randn(4, 3)).square().sum().backward()
        optimiser.step()

    straight, other = made(), made()
    for k in range(2):
        step(*straight, k)
        step(*other, k)
    resumed = made()
    resumed[0].load_state_dict(other[0].state_dict())
    restore_optimiser(resumed[1], resumed[0], optimiser_tensors(other[1], other[0]))
    for k in range(2, 4):
        step(*straight, k)
        step(*resumed, k)
    assert all(torch.equal(a, b) for a, b in zip(straight[0].parameters(), resumed[0].parameters()))


def test_state_of_another_network_is_refused():
    network = torch.nn.Linear(2, 2)
    state = {"momentum_buffer/conv1.weight": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"momentum_buffer/conv1\.weight"):
        restore_optimiser(Optimiser().over(network.parameters()), network, state)


@pytest.mark.parametrize("bad", [{"name": "rmsprop"}, {"learning_rate": 0.0}, {"learning_rate": math.nan},
                                 {"betas": [0.9]}, {"momentum": 1.0}])
def test_optimisers_without_meaning_are_refused(bad):
    with pytest.raises(WrongSetting, match="expected"):
        Optimiser(**bad)


@pytest.mark.parametrize("bad", [{"name": "step"}, {"every_steps": 0}, {"factor": -1.0}])
def test_schedules_without_meaning_are_refused(bad):
    with pytest.raises(WrongSetting, match="expected"):
        Schedule(**bad)
