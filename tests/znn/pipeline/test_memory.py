"""The reckoned memory against hand counts and against what a process really takes."""
import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import models
from znn.nn import Conv3d, MaxFilter3d, ReLU
from znn.pipeline.cutting import BLOCK_COST, block_shape
from znn.pipeline.errors import BudgetTooSmall
from znn.pipeline.memory import Footprint, footprint


def test_peak_of_a_chain_is_its_heaviest_neighbours():
    chain = torch.nn.Sequential(Conv3d(1, 25, (1, 3, 3), activation=ReLU()), MaxFilter3d((1, 2, 2)), Conv3d(25, 2, 1))
    need = footprint(chain, 1, (1, 4, 4))
    for z, y, x in ((6, 10, 12), (1, 9, 14), (50, 700, 600)):
        first, pooled = z * (y - 2) * (x - 2), z * (y - 3) * (x - 3)
        assert need(z, y, x) == 4 * (z * y * x + 25 * (first + pooled))


def test_the_heaviest_moment_depends_on_the_extent():
    """Wide and early, or many channels behind a large kernel."""
    need = footprint(torch.nn.Sequential(Conv3d(1, 20, 1), Conv3d(20, 1, (1, 9, 9)), Conv3d(1, 60, 1)), 1, (1, 9, 9))
    assert need(1, 9, 9) == 4 * (81 + 20 * 81 + 1)
    assert need(1, 100, 100) == 4 * (100 ** 2 + 61 * 92 ** 2)


def test_plain_torch_holds_a_convolution_and_its_activation():
    layer = Conv3d(1, 25, 1, activation=ReLU())
    assert footprint(layer, 1, (1, 1, 1), fused=True)(2, 3, 4) == 4 * 24 * (1 + 25)
    assert footprint(layer, 1, (1, 1, 1), fused=False)(2, 3, 4) == 4 * 24 * (1 + 25 + 25)


def test_a_branch_lives_until_it_is_summed():
    class Skip(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Conv3d(1, 4, 1), Conv3d(4, 4, 1), Conv3d(4, 4, 1)

        def forward(self, x):
            kept = self.a(x)
            return kept + self.c(self.b(kept))

    # x, kept, and two of the branch at a time; at the sum: kept, the branch's end, the sum.
    assert footprint(Skip(), 1, (1, 1, 1))(1, 1, 10) == 40 * (1 + 4 + 4 + 4)


def test_what_is_held_beside_counts_at_every_moment():
    need = dataclasses.replace(footprint(Conv3d(1, 2, 1), 1, (1, 1, 1)), excess=1.5, beside=40)
    assert need.own(2, 3, 4) == 1.5 * 24 * 12 and need(2, 3, 4) == 24 * (1.5 * 12 + 40)


def test_published_pair_by_hand():
    """VD2D in small blocks is heaviest at conv2b, in large ones at conv5 (60 and 200 channels)."""
    network = models.build("VD2D")
    need = footprint(network, 1, network.field_of_view)
    assert need(1, 109, 109) == 4 * (109 ** 2 + 36 * (99 ** 2 + 95 ** 2))
    assert need(1, 1109, 1109) == 4 * (1109 ** 2 + 60 * 1033 ** 2 + 200 * 1001 ** 2)


@pytest.mark.parametrize("extent", [(7, 61, 83), (1, 5, 200), (24, 26, 28)])
@pytest.mark.parametrize("budget", [4_000, 30_000, 10_000_000])
def test_block_shape_against_all_cuts(extent, budget):
    """It fits, costs at most 5 % more than the cheapest that fits, and of those takes the least memory."""
    fov, density = (3, 5, 6), 10
    chosen = block_shape(extent, fov, even(density), budget)

    def need(shape):
        return density * math.prod(s + f - 1 for s, f in zip(shape, fov))

    def cost(shape):
        counts = [-(-n // s) for n, s in zip(extent, shape)]
        return math.prod(n + k * (f - 1) for n, k, f in zip(extent, counts, fov)) + BLOCK_COST * math.prod(counts)

    fitting = [shape for shape in itertools.product(*(range(1, n + 1) for n in extent)) if need(shape) <= budget]
    least = min(map(cost, fitting))
    good = [shape for shape in fitting if cost(shape) <= 1.05 * least]
    assert chosen in good and need(chosen) == min(map(need, good))


def even(density):
    return Footprint((((density, (0, 0, 0)),),))


def test_a_2d_network_is_stopped_between_sections():
    assert block_shape((50, 512, 512), (1, 109, 109), even(4), 1e9) == (1, 512, 512)


def test_a_network_that_sees_one_voxel_is_not_run_voxel_by_voxel():
    blocks = np.divide((100, 100, 100), block_shape((100, 100, 100), (1, 1, 1), even(4), 1e9))
    assert 1 < math.prod(np.ceil(blocks)) < 10


def test_a_huge_volume_is_planned_at_once():
    shape = block_shape((40_000, 90_000, 70_000), (5, 85, 85), even(600), 2e9)
    assert 600 * math.prod(np.add(shape, (4, 84, 84))) <= 2e9 and min(shape) > 4


def test_a_budget_below_one_field_of_view_is_refused_with_numbers():
    with pytest.raises(BudgetTooSmall, match=r"net needs at least 0\.010 GB .*\(5, 85, 85\), found 0\.009 GB"):
        block_shape((9, 99, 99), (5, 85, 85), even(300), 0.0093 * 2**30, "net")


MEASURE = """
import sys
import numpy as np, models
from data import Volume
from znn import compile
from znn.pipeline.averaging import passes
from znn.pipeline.inference import run, warm_up
from znn.pipeline.memory import memory_now, peak_memory, return_freed
return_freed()
networks = [models.build("VD2D"), models.build("VD2D3D", {"recursive": True})]
warm_up(networks)
image = Volume.from_array(np.random.default_rng(0).normal(size=(12, 300, 310)).astype(np.float32))
work = passes(networks, image, memory_budget=200e6)
before = memory_now()
result = run(work, image, prepare={"layers": None, "compiled": compile}[sys.argv[1]])
group, = work[0].groups
print(peak_memory() - before - result.read().nbytes, group.nbytes, len(group.last.blocks()))
"""


@pytest.mark.parametrize("how", ["layers", "compiled"])
def test_what_is_reckoned_is_what_a_process_takes(how):
    """Never more than the budget, and not so much less that it would be wasted."""
    out = subprocess.run([sys.executable, "-c", MEASURE, how], capture_output=True, text=True, check=True)
    measured, reckoned, blocks = map(float, out.stdout.split())
    assert blocks > 4 and 80e6 < reckoned <= 200e6
    assert 0.5 * reckoned < measured < 1.05 * 200e6


def test_the_peak_is_the_process_s_own_whatever_its_parent_held():
    held = np.ones(100_000_000)
    code = "from znn.pipeline.memory import memory_now, peak_memory; print(peak_memory() / memory_now())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert held.nbytes == 800_000_000 and 1 <= float(out.stdout) < 1.5
