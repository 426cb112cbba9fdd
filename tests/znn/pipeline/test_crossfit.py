"""Maps of training sections by networks that have not seen them."""
from dataclasses import replace

import numpy as np
import pytest

from data import Volume
from tests.znn.pipeline.small_run import build, data, recursion, trainer
from znn.pipeline.checkpoint import load, load_stages, stage_tensors
from znn.pipeline.crossfit import Fit, fits, outside, parts, regions
from znn.pipeline.errors import Interrupted, PipelineError, WrongSetting
from znn.pipeline.inference import infer_volume
from znn.pipeline.interruption import Interruption
from znn.pipeline.monitor import Monitor
from znn.pipeline.recursion import BEST, FINAL, LAST
from znn.pipeline.stacks import open_stacks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def crossfitted(folder, root, folds=2, **changes):
    run = recursion(folder, root, trainer(**changes))
    stages = run.stages | {"plain": replace(run.stages["plain"], folds=folds)}
    return type(run)(folder, stages, run.data, run.stacks, build, run.transfer, run.seed)


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    crossfitted(folder, root).run(Monitor(Interruption(), hidden=True))
    return folder


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_parts_are_all_of_the_training_sections_and_a_fold_reads_the_others(root, folds):
    stack, = open_stacks(data(root))
    found = parts(stack, folds)
    assert sum(p.shape[0] for p in found) == 5 and max(p.shape[0] for p in found) - min(p.shape[0] for p in found) <= 1
    for part in found:
        sources = outside(stack.training, part)
        assert all(s.roi.intersect(part).size == 0 and s.roi.size for s in sources)
        assert sum(s.roi.shape[0] for s in sources) + part.shape[0] == 5
    pairs = regions(stack, folds)
    assert [fold for _, fold in pairs] == [*range(folds), None]
    assert [r.begin[0] for r, _ in pairs[1:]] == [r.end[0] for r, _ in pairs[:-1]]
    assert pairs[0][0].begin[0] == 0 and pairs[-1][0].end[0] == stack.image.shape[0] == 7


def test_folds_that_cannot_be(root, tmp_path):
    run = recursion(tmp_path, root)
    assert fits(run.stages) == [Fit(0, "plain"), Fit(1, "again", before="plain")]
    with pytest.raises(WrongSetting, match=r"stages.again.folds: expected 1 for the last stage"):
        fits(run.stages | {"again": replace(run.stages["again"], folds=2)})
    with pytest.raises(WrongSetting, match=r"folds: expected at most as many as phantom has training sections, 5"):
        crossfitted(tmp_path, root, folds=6)
    with pytest.raises(WrongSetting, match="stage folds"):
        replace(run.stages["plain"], folds=0)
    with pytest.raises(PipelineError, match="stages.plain.folds: plain.fold2 is trained on what is left of each stack "
                                            r"without part 2, where no patch fits \(.*\); give fewer folds"):
        crossfitted(tmp_path, root, folds=4, patch=[3, 6, 9])


@pytest.mark.parametrize("folds, before", [((2, 2, 1), ["b", "b.fold1", "b.fold2"]), ((3, 2, 1), ["b", "b", "b"]),
                                           ((1, 2, 1), ["b", "b", "b"])])
def test_a_fold_begins_with_the_same_fold_of_the_stage_before(root, tmp_path, folds, before):
    stage = recursion(tmp_path, root).stages["plain"]
    found = fits({name: replace(stage, folds=n) for name, n in zip(("b", "c", "d"), folds)})
    assert [fit.before for fit in found if fit.index == 1] == before
    assert all(fit.before is None for fit in found if fit.index == 0) and found[-1].before == "c"


def test_each_part_is_mapped_by_the_network_that_has_not_seen_it(whole, root):
    run = crossfitted(whole, root)
    tensors, _ = load(whole / LAST)
    assert [fit.label for fit in run.fits] == ["plain", "plain.fold1", "plain.fold2", "again"]
    stack = run.stacks[0]
    found = Volume.open(whole / "maps" / "plain" / "phantom.h5", "volumes/predictions/boundary").read()
    maps = []
    for region, fold in regions(stack, 2):
        network = run.network(0)
        network.load_state_dict(stage_tensors(tensors, "plain" if fold is None else f"plain.fold{fold + 1}"))
        maps.append(infer_volume([network], stack.image, region=region).read())
    assert np.array_equal(found, np.concatenate(maps))
    plain = run.network(0)
    plain.load_state_dict(stage_tensors(tensors, "plain"))
    assert not np.allclose(found[:5], infer_volume([plain], stack.image).read()[:5])


@pytest.mark.parametrize("file", [FINAL, BEST, LAST])
def test_what_is_used_afterwards_are_the_stages_alone(whole, file):
    stages, _ = load_stages(whole / file, build)
    assert [name for name, _ in stages] == ["plain", "again"]
    assert any("fold" in key for key in load(whole / file)[0]) == (file == LAST)


class Stopping(Interruption):
    def __init__(self, n):
        super().__init__()
        self.left = n

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise Interrupted("stopped")


@pytest.mark.parametrize("checks", [1, 6, 12, 18, 24, 28])
def test_stopped_and_gone_on_with_it_ends_the_same(whole, root, tmp_path, checks):
    with pytest.raises(Interrupted):
        crossfitted(tmp_path, root).run(Monitor(Stopping(checks), hidden=True))
    crossfitted(tmp_path, root).run(Monitor(Interruption(), hidden=True), resume=True)
    for file in (FINAL, LAST):
        (one, _), (other, _) = load(tmp_path / file), load(whole / file)
        assert one.keys() == other.keys() and all((one[k] == other[k]).all() for k in one)
