import numpy as np
import pytest

from data import IGNORE, ClassCounts, Roi, Source, Volume, boundary_target, class_counts
from data.errors import EmptyVolume, Mismatch, WrongType
from tests.data.stacks import OFFSET, RESOLUTION, checkered, numbered, source

SHAPE = (7, 61, 83)


def ids(shape=SHAPE):
    values = np.random.default_rng(2).integers(0, 4, shape).astype(np.uint64)
    values[values == 3] = 2 ** 64 - 1
    return values


def test_target_of_any_part_is_the_part_of_the_whole_target():
    one = Source(numbered(SHAPE), Volume.from_array(ids(), RESOLUTION, OFFSET), "ids")
    whole = boundary_target(ids(), "ids")
    np.testing.assert_array_equal(one.target().read(), whole)
    for begin, shape in (((0, 0, 0), (1, 1, 1)), ((6, 60, 82), (1, 1, 1)), ((2, 5, 7), (3, 11, 13))):
        roi = Roi(begin, shape)
        np.testing.assert_array_equal(one.target().read(roi), whole[roi.slices])


def test_labels_of_a_part_are_ignored_elsewhere():
    labels = checkered((3, 20, 30), (OFFSET[0] + 80, OFFSET[1] + 40, OFFSET[2] + 70))
    one = Source(numbered(SHAPE), labels)
    assert one.region() == Roi((2, 10, 20), (3, 20, 30))
    target = one.target().read()
    np.testing.assert_array_equal(target[one.region().slices], labels.read())
    assert (target == IGNORE).sum() == np.prod(SHAPE) - 3 * 20 * 30


def test_roi_restricts_image_and_labels():
    roi = Roi((1, 10, 20), (4, 30, 40))
    one = source(SHAPE, roi=roi)
    assert one.image().shape == (4, 30, 40) and one.region() == Roi((0, 0, 0), (4, 30, 40))
    np.testing.assert_array_equal(one.image().read(), numbered(SHAPE).read()[roi.slices])
    np.testing.assert_array_equal(one.target().read(), checkered(SHAPE).read()[roi.slices])


def test_map_may_cover_the_whole_or_just_the_roi():
    roi = Roi((1, 10, 20), (4, 30, 40))
    probability = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    whole = Volume.from_array(probability, RESOLUTION, OFFSET)
    for boundary_map in (whole, whole.crop(roi)):
        scaled = source(SHAPE, roi=roi).with_map(boundary_map).scaled_map("fixed")
        np.testing.assert_allclose(scaled.read(), 2 * probability[roi.slices] - 1, atol=1e-6)
    with pytest.raises(Mismatch, match="expected the boundary map to cover"):
        source(SHAPE, roi=roi).with_map(whole.crop(roi.grow((0, 0, 0), (0, 0, -1)))).scaled_map("fixed")


def test_raw_and_labels_that_do_not_belong_together():
    with pytest.raises(Mismatch, match="do not overlap"):
        Source(numbered(SHAPE), checkered(SHAPE, (5000.0 + 37, 911.0, 911.0)))
    with pytest.raises(Mismatch, match="expected the mask to cover"):
        source(SHAPE, mask=checkered((7, 61, 82))).target()


def test_raw_must_have_been_standardised():
    with pytest.raises(WrongType, match=r"found uint8; pass standardised\("):
        Source(Volume.from_array(np.zeros(SHAPE, np.uint8)), checkered(SHAPE))


def test_class_counts_leave_out_what_is_ignored():
    mask = np.zeros(SHAPE, np.uint8)
    mask[:, :30] = 1
    one, two = source(SHAPE, mask=Volume.from_array(mask, RESOLUTION, OFFSET)), source((3, 20, 30))
    labels = np.concatenate([checkered(SHAPE).read()[:, 30:].ravel(), checkered((3, 20, 30)).read().ravel()])
    assert class_counts([one, two]) == ClassCounts(int((labels == 0).sum()), int((labels == 1).sum()))
    with pytest.raises(EmptyVolume, match="all are ignored"):
        class_counts([source(SHAPE, mask=Volume.from_array(np.ones(SHAPE, np.uint8), RESOLUTION, OFFSET))])
