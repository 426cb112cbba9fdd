import numpy as np
import pytest

import models
from znn.codegen import target
from znn.nn import layers
from znn.runtime.layer import PASSES
from znn.tuner.workloads import SPLITS, convolutions, of_network, published

LAST = (1, 24, 5, 73, 35), (36, 24, 5, 5, 5), "relu"  # convolution of the test set: shapes, activation
AVX512 = target.TARGETS["avx512"]


@pytest.fixture(scope="module")
def sets():
    return {split: published(split, AVX512) for split in SPLITS}


def test_sets_are_the_same_every_time(sets):
    for split, found in sets.items():
        assert published(split, AVX512) == found
    drawn = {split: convolutions(split) for split in SPLITS}
    assert {split: len(found) for split, found in drawn.items()} == {"train": 88, "test": 48}
    last = drawn["test"][-1]
    assert (last.x_shape, last.w_shape, last.activation) == LAST, "the published set must not change"


def test_what_is_held_out_shares_no_kernel_channels_or_columns_with_training():
    train, test = SPLITS["train"], SPLITS["test"]
    for values in ("kernels", "channels", "columns"):
        assert not set(getattr(train, values)) & set(getattr(test, values))
    seen, held = ({c.w_shape[2:] for c in convolutions(split)} for split in ("train", "test"))
    assert seen == set(train.kernels) and held == set(test.kernels)


def test_families_are_whole_and_disjoint(sets):
    families = {split: {w.family for w in found} for split, found in sets.items()}
    assert not families["train"] & families["test"]
    for split, found in sets.items():
        assert all({w.which for w in found if w.family == family} == set(PASSES) for family in families[split])


def test_the_range_that_is_covered(sets):
    both = [c for split in SPLITS for c in convolutions(split)]
    assert min(min(c.w_shape[:2]) for c in both) <= 2 and max(max(c.w_shape[:2]) for c in both) == 200
    assert {max(c.w_shape[2:]) for c in both} == {1, 2, 3, 4, 5}
    assert {c.dilation for c in both} >= {(1, 1, 1), (1, 2, 2), (1, 4, 4)}
    kinds = {w.problem.contraction.name for found in sets.values() for w in found}
    assert kinds == {"conv_forward", "conv_backward_data", "conv_backward_weights", "points_forward", "points_weights"}


@pytest.mark.parametrize("where", target.TARGETS.values(), ids=target.TARGETS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_start_is_possible_and_no_problem_comes_twice(split, where):
    found = published(split, where)
    assert not [w.name for w in found if w.problem.refusal(w.problem.start)]
    assert len({w.problem for w in found}) == len(found)


def test_a_larger_set_begins_with_the_smaller():
    few, many = (set(convolutions("test", each)) for each in (2, 3))
    assert few < many and len(many) * 2 == len(few) * 3


def network(name, options, output):
    net = models.build(name, options)
    return layers(net, (1, net.in_channels, *(n + f - 1 for n, f in zip(output, net.field_of_view))))


def test_layers_of_the_recursive_network():
    found = {layer.name: layer for layer in network("VD2D3D", {"recursive": True}, (1, 20, 20))}
    assert len(found) == 14
    assert [name for name, layer in found.items() if "data" not in layer.passes] == ["conv1a", "conv1a_r"]
    image, earlier = found["conv1c"], found["conv1c_r"]
    assert (image.onto, image.bias, image.activation) == (False, True, None)
    assert (earlier.onto, earlier.bias, earlier.activation) == (True, False, "relu")
    assert found["convx"].extent == (1, 20, 20) and found["conv4a"].reach == 16


@pytest.mark.parametrize("name, options", [("N4", {}), ("VD2D", {}), ("VD2D3D", {"recursive": True})])
def test_all_that_a_network_asks_for_can_be_tuned(name, options):
    found = of_network(network(name, options, (1, 100, 100)), AVX512)
    assert {w.which for w in found} == set(PASSES)
    assert not [w.name for w in found if w.problem.refusal(w.problem.start)]
    assert len({w.problem for w in found}) == len(found)
    at_points = [w.problem for w in found if w.problem.contraction.name == "points_forward"]
    assert at_points and all((p.task, p.threads, p.dtype) == ("p", 1, np.float32) for p in at_points)
