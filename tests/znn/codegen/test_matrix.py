"""Convolutions for a matrix unit: how they are shared among tiles, on any processor, and what becomes of them."""
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.codegen.test_target import assembly, inner_loops
from znn.codegen import matrix, target
from znn.codegen.group import BF16, U8
from znn.codegen.matrix_tiles import SIDE, Tiling
from znn.codegen.plan import Epilogue


@given(st.integers(1, 70), st.integers(1, 70), st.tuples(*[st.integers(1, 3)] * 3))
def test_tiles_hold_every_weight_once_and_rows_that_they_share_alike(elements, outputs, taps):
    t = Tiling(elements, 4 * outputs if outputs > 4 else outputs, taps)
    assert max(t.height, t.depth) <= SIDE
    w = np.random.default_rng(0).integers(1, 2**32, (t.outputs, elements, *taps)).astype(np.uint32)
    for tile, top in zip(t.packed(w), t.tops):
        found = np.zeros((t.height, elements, *taps), np.uint32)
        for s, first in enumerate(t.steps):
            part = tile[..., s, :, :t.depth].transpose(3, 4, 0, 1, 2)
            assert not (part & found[:, first:first + t.depth]).any(), "a weight is summed twice"
            found[:, first:first + t.depth] |= part
        assert np.array_equal(found, w[top:top + t.height])
        assert not tile[..., t.depth:].any()
    assert {top + i for top in t.tops for i in range(t.height)} == set(range(t.outputs))


@given(st.integers(1, 200), st.integers(1, 4))
def test_what_is_computed_again_is_mixed_once(outputs, mixes):
    t, w = Tiling(5, outputs, (1, 1, 1)), np.random.default_rng(0).uniform(1, 2, (mixes, outputs)).astype(np.float32)
    total = np.zeros_like(w)
    for tile, top in zip(t.mixing(w), t.tops):
        total[:, top:top + t.height] += tile.T
    assert np.array_equal(total, w)


@pytest.mark.parametrize("outputs, high, height, tops", [
    (7, 1, 7, [0]), (36, 3, 12, [0, 12, 24]), (60, 2, 16, [0, 16, 32, 44]), (96, 3, 16, [0, 16, 32, 48, 64, 80]),
    (100, 3, 12, [0, 12, 24, 36, 48, 60, 72, 84, 88])])
def test_tiles_are_of_about_the_same_size_and_two_or_three_to_a_block(outputs, high, height, tops):
    t = Tiling(18, outputs, (1, 3, 3))
    assert (t.depth, t.steps, t.high, t.height, t.tops) == (9, [0, 9], high, height, tops)


def unit(group):
    where = target.current()
    if not matrix.supports(where, group):
        pytest.skip(f"this processor has no matrix unit for {group.name}, or the system does not let us use it")
    return where


@pytest.mark.parametrize("group, multiply", [(BF16, "tdpbf16ps"), (U8, "tdpbsud")], ids=["bf16", "u8"])
@pytest.mark.parametrize("outputs, products, loads", [(32, 4, 4), (48, 6, 7)])
def test_tiles_of_a_block_share_what_they_read(group, multiply, outputs, products, loads):
    where, taps, x_shape = unit(group), 3, (1, 16, 1, 9, 66)
    epilogue = Epilogue(bias=True, activation="relu", stores=group)
    text = assembly(matrix.convolution(where, group, x_shape, outputs, (1, 3, taps), (1, 1, 1), epilogue), where)
    found = [(len(re.findall(multiply, loop)), len(re.findall("tileload", loop))) for loop in inner_loops(text)
             if multiply in loop]
    assert (taps * products, taps * loads) in found


def test_rows_of_the_next_step_are_asked_for():
    where = unit(BF16)
    text = assembly(matrix.convolution(where, BF16, (1, 16, 1, 9, 66), 32, (1, 3, 3), (1, 1, 1), Epilogue()), where)
    asked = [len(re.findall("prefetcht0", loop)) for loop in inner_loops(text) if "tdpbf16ps" in loop]
    assert asked and all(n >= 16 * 3 for n in asked)  # of 16 elements 34 voxels or more, wherever they begin


def test_sums_in_the_unit_begin_at_zero():
    with pytest.raises(ValueError, match="cannot add to what is there"):
        matrix.convolution(target.TARGETS["avx512"], BF16, (1, 8, 1, 1, 16), 8, (1, 1, 1), (1, 1, 1),
                           Epilogue(accumulate=True))


def test_only_numbers_that_the_unit_knows_are_given_to_it():
    assert not any(matrix.supports(target.TARGETS[name], BF16) for name in ("avx2", "neon", "generic"))
