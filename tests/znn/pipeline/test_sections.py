"""Stages sweep together: all that is read is held at that moment, right, and no more than was planned."""
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from data import Roi, Volume
from tests.znn.pipeline.tiny import noise, tiny
from znn.pipeline import sections
from znn.pipeline.columns import cut
from znn.pipeline.errors import BudgetTooSmall
from znn.pipeline.groups import Group, Stage
from znn.pipeline.memory import Footprint
from znn.pipeline.planning import plan
from znn.pipeline.sections import tasks


def triples(low, high):
    return st.tuples(*[st.integers(low, high)] * 3)


def chain(shape, region, fields_of_view, block_shapes):
    """Stages of no network at all."""
    found = []
    for i, (fov, block) in reversed(list(enumerate(zip(fields_of_view, block_shapes)))):
        stage = Stage(f"stage{i}", None, fov, Footprint((((8.0, (0, 0, 0)),),)), region, shape, block)
        region = stage.reads(region)
        found.insert(0, stage)
    return tuple(found)


class Watched(sections.SectionMap):
    """Tells whenever something is put how many bytes all of a column hold."""

    def __init__(self, shape, now, most):
        super().__init__(shape)
        self.now, self.most = now, most

    def put(self, *arguments, **named):
        super().put(*arguments, **named)
        self.now[self] = 4 * len(self._held) * math.prod(self.shape[1:])
        self.most.append(sum(self.now.values()))


@settings(max_examples=150, deadline=None)
@given(triples(2, 9), st.lists(st.tuples(triples(1, 5), triples(1, 5)), min_size=2, max_size=3),
       st.tuples(st.integers(1, 3), st.integers(1, 3)), st.data())
def test_what_is_read_is_held_and_right_and_no_more(shape, chained, columns, data):
    """Every map holds at each voxel the voxel's number, so what is read can be told; some blocks are done already."""
    begin = [data.draw(st.integers(0, n - 1)) for n in shape]
    region = Roi.between(begin, [data.draw(st.integers(b + 1, n)) for b, n in zip(begin, shape)])
    stages = chain(shape, region, *zip(*chained))
    column = [min(k * b, n) for k, b, n in zip(columns, stages[-1].block_shape[1:], region.shape[1:])]
    image = Volume.from_array(np.arange(math.prod(shape), dtype=np.float32).reshape(shape))
    group, done = Group(stages, tuple(column), 0.0), data.draw(st.sets(st.integers(0, 50)))
    number = {block.write: i for i, block in enumerate(group.last.blocks())}
    written = np.zeros(shape, int)
    with pytest.MonkeyPatch.context() as patch:
        for part in group.columns():
            now, most = {}, [0]
            patch.setattr(sections, "SectionMap", lambda shape, now=now, most=most: Watched(shape, now, most))
            for task in tasks(part, image, lambda block: number[block.write] in done):
                if task.held is not None:
                    np.testing.assert_array_equal(task.held.read(task.block.read),
                                                  2 * image.read_mirrored(task.block.read) - 1)
                if task.target is None:
                    written[task.block.write.slices] += 1
                else:
                    task.target(image.read(task.block.write))
            assert max(most) <= group.section_bytes
    expected = np.zeros(shape, int)
    for block in group.last.blocks():
        expected[block.write.slices] = number[block.write] not in done
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("budget", [70_000, 150_000, 300_000, 10_000_000])
def test_what_is_planned_fits_the_budget(budget):
    """Narrower columns where whole sections would not."""
    group, = plan([tiny(), tiny(2, seed=1)], Volume.from_array(noise((9, 61, 83))), memory_budget=budget)
    assert group.section_bytes > 0 and group.nbytes <= budget
    assert (len(group.columns()) > 1) == (budget < 1_000_000)
    assert all(c % b == 0 or c == n for c, b, n in zip(group.column, group.last.block_shape[1:], (61, 83)))


def test_too_small_a_budget_for_sections_is_refused():
    stages = chain((50, 9, 9), Roi((0, 0, 0), (50, 9, 9)), [(1, 1, 1), (40, 1, 1)], [None, None])
    with pytest.raises(BudgetTooSmall, match="raise memory_budget_gb"):
        cut(stages, 400)


class Huge:
    shape, dtype = (1000, 20_000, 20_000), np.dtype(np.uint8)


def test_a_huge_volume_is_planned_in_wide_columns():
    """Published pair, 2 GB: the first stage is computed less than 1.2 times where columns overlap."""
    networks = [models.build("VD2D"), models.build("VD2D3D", {"recursive": True})]
    group, = plan(networks, Volume(Huge()), memory_budget=2e9)
    assert group.nbytes <= 2e9 and group.stages[0].block_shape[0] == 1
    extents = group.extents()
    assert 1 < math.prod(extents[0][1:]) / math.prod(extents[1][1:]) < 1.2
