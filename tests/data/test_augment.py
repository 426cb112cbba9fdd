"""Each augmentation at p=1 changes the data, at p=0 does not; image, map and labels move together; ignore survives."""
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import IGNORE, Augmentation, PatchSampler, Source, Volume
from data.errors import WrongSetting
from data.shade import contrast, gamma, shaded
from data.smooth import Spline, smooth_plane
from data.warp import Warp, draw_moves, draw_warp
from tests.data.stacks import OFFSET, RESOLUTION

SHAPE, INPUT, OUTPUT = (9, 90, 110), (5, 48, 64), (3, 40, 50)
ALL = [f.name for f in fields(Augmentation) if f.name.endswith("_p")]
MOVING = ["flip_z_p", "flip_y_p", "flip_x_p", "transpose_xy_p", "elastic_p", "slip_p", "shift_p"]
SHADING = ["contrast_p", "gamma_p", "blur_p", "missing_p"]


def membrane_source():
    """Grey values and a map that are the labels themselves, so that a patch shows whether they move together."""
    rng = np.random.default_rng(0)
    labels = rng.random((SHAPE[0], SHAPE[1] // 5, SHAPE[2] // 5)).repeat(5, 1).repeat(5, 2) < 0.4
    mask = rng.random(SHAPE) < 0.1

    def volume(values, dtype):
        return Volume.from_array(values.astype(dtype), RESOLUTION, OFFSET)

    return Source(volume(labels, np.float32), volume(labels, np.uint8), mask=volume(mask, np.uint8),
                  boundary_map=volume(labels, np.float32))


def textured_source():
    rng = np.random.default_rng(1)
    labels = rng.random(SHAPE) < 0.3
    return Source(Volume.from_array(rng.standard_normal(SHAPE).astype(np.float32)), Volume.from_array(labels))


def only(**options):
    values = {f.name: getattr(Augmentation.none(), f.name) for f in fields(Augmentation)}
    return Augmentation(**(values | options))


def draws(source, augmentation, steps=12):
    sampler = PatchSampler([source], INPUT, OUTPUT, augmentation, seed=5)
    return [sampler.draw(step) for step in range(steps)]


@pytest.mark.parametrize("name", ALL)
def test_certain_augmentation_changes_every_patch_and_an_impossible_one_none(name):
    plain = draws(textured_source(), None)
    for a, b in zip(plain, draws(textured_source(), only(**{name: 0.0}))):
        np.testing.assert_array_equal(a.image, b.image)
        np.testing.assert_array_equal(a.target, b.target)
    for a, b in zip(plain, draws(textured_source(), only(**{name: 1.0}))):
        assert b.image.shape == a.image.shape and b.image.dtype == np.float32
        assert b.target.shape == a.target.shape and b.target.dtype == np.uint8
        assert not np.array_equal(a.image, b.image)


@pytest.mark.parametrize("name", SHADING)
def test_shading_leaves_the_labels_alone(name):
    for a, b in zip(draws(textured_source(), None), draws(textured_source(), only(**{name: 1.0}))):
        np.testing.assert_array_equal(a.target, b.target)


@pytest.mark.parametrize("name", MOVING)
def test_moving_moves_the_labels_too(name):
    plain, moved = draws(textured_source(), None), draws(textured_source(), only(**{name: 1.0}))
    assert sum(not np.array_equal(a.target, b.target) for a, b in zip(plain, moved)) >= 6


def assert_together(patch, exact):
    """The centre of the image and of the map are the target, where there is one."""
    low = [(i - o) // 2 for i, o in zip(INPUT, OUTPUT)]
    image, scaled = (c[tuple(slice(b, b + n) for b, n in zip(low, OUTPUT))] for c in patch.image)
    known = patch.target != IGNORE
    np.testing.assert_allclose(scaled, 2 * image - 1, atol=1e-5)
    agree = (image > 0.5)[known] == patch.target[known]
    assert agree.all() if exact else agree.mean() > 0.9


@pytest.mark.parametrize("name", MOVING)
def test_image_map_and_labels_move_together(name):
    for patch in draws(membrane_source(), only(**{name: 1.0})):
        assert_together(patch, exact=name != "elastic_p")


def test_all_at_once_move_together():
    for patch in draws(membrane_source(), only(**dict.fromkeys(MOVING, 1.0))):
        assert_together(patch, exact=False)


@pytest.mark.parametrize("name", ["slip_p", "shift_p", "elastic_p"])
def test_what_comes_from_outside_of_the_labels_is_ignored(name):
    """The patch is the whole stack, so whatever moves brings in voxels that have no label."""
    source = textured_source()
    sampler = PatchSampler([source], SHAPE, SHAPE, only(**{name: 1.0}, elastic_sigma_px=6.0))
    for step in range(6):
        patch = sampler.draw(step)
        assert (patch.target == IGNORE).any() and set(np.unique(patch.target)) == {0, 1, IGNORE}


def test_flips_of_odd_patches_are_exact():
    plain = draws(textured_source(), None)
    turned = draws(textured_source(), only(flip_z_p=1.0, flip_y_p=1.0, flip_x_p=1.0))
    for a, b in zip(plain, turned):
        np.testing.assert_array_equal(a.image[:, ::-1, ::-1, ::-1], b.image)
        np.testing.assert_array_equal(a.target[::-1, ::-1, ::-1], b.target)


def test_each_augmentation_draws_on_its_own():
    """Turning one on changes neither the place of a patch nor what another one does."""
    slip = draws(textured_source(), only(slip_p=1.0))
    both = draws(textured_source(), only(slip_p=1.0, contrast_p=1.0, elastic_p=1.0, elastic_sigma_px=0.0))
    for a, b in zip(slip, both):
        assert a.where == b.where
        np.testing.assert_array_equal(a.target, b.target)


def test_the_published_recipe_has_sixteen_variants():
    rng = np.random.default_rng(0)
    assert len({Augmentation().orientation(rng) for _ in range(400)}) == 16


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 10 ** 6))
def test_misalignment_moves_one_section_or_all_that_follow(sections, farthest, seed):
    slip = draw_moves(only(slip_p=1.0, misalign_max_px=farthest), sections, np.random.default_rng(seed))
    shift = draw_moves(only(shift_p=1.0, misalign_max_px=farthest), sections, np.random.default_rng(seed))
    assert slip.any(1).sum() == 1
    start = int(np.flatnonzero(shift.any(1))[0])
    assert start > 0 and (shift[start:] == shift[start]).all() and not shift[:start].any()
    assert max(np.abs(slip).max(), np.abs(shift).max()) <= farthest


def test_misalignment_steps_are_uniform_in_both_directions():
    rng = np.random.default_rng(0)
    steps = np.array([draw_moves(only(slip_p=1.0, misalign_max_px=2), 2, rng).sum(0) for _ in range(600)])
    assert len(np.unique(steps, axis=0)) == 24
    assert np.abs(steps.mean(0)).max() < 0.25


def test_elastic_displacement_is_as_large_as_asked_in_pixels():
    """Two directions of very different extent: the amount does not depend on the size of the patch."""
    augmentation = only(elastic_p=1.0, elastic_sigma_px=3.0, elastic_spacing_px=20.0)
    fields_ = [draw_warp(augmentation, (5, 48, 164), np.random.default_rng(i), np.random.default_rng(0)).field
               for i in range(60)]
    for axis in (0, 1):
        assert np.std([f[axis] for f in fields_]) == pytest.approx(3.0, rel=0.15)
    assert np.abs(fields_).max() <= 9.0


def test_elastic_takes_values_from_where_the_field_points():
    field = np.zeros((2, 6, 7))
    field[0], field[1] = 1.0, 0.5
    warp = Warp(np.zeros((2, 2), int), field)
    values = np.random.default_rng(0).random((2, 6 + 2 * warp.margin, 7 + 2 * warp.margin))
    m = warp.margin
    inner = values[:, m + 1:m + 7, m:m + 8]
    expected = (inner[..., :-1] + inner[..., 1:]) / 2
    np.testing.assert_allclose(warp.apply(values, (0, 0, 0), (2, 6, 7), order=1), expected)


def test_splines_are_smooth_and_of_unit_variance():
    """Along straight control points a cubic spline is straight; fields have the variance of their controls."""
    spline = Spline(np.arange(5) * 3.1, 3.1)
    raw = spline.weights / spline.weights.sum(1, keepdims=True)
    np.testing.assert_allclose(raw, [[1 / 6, 4 / 6, 1 / 6, 0]] * 5, atol=1e-12)
    assert spline.controls == 8 and spline.along(np.zeros((2, 8, 3)), 1).shape == (2, 5, 3)
    plane = smooth_plane(np.random.default_rng(0), (70, 90), 4.0, count=20)
    assert plane.shape == (20, 70, 90) and plane.std() == pytest.approx(1, abs=0.05)


def test_missing_and_blurred_sections():
    image = np.random.default_rng(0).standard_normal((2, 5, 20, 30)).astype(np.float32)
    for seed in range(20):
        rngs = {name[:-2]: np.random.default_rng([seed, i]) for i, name in enumerate(SHADING)}
        missing = shaded(image, only(missing_p=1.0, missing_max_sections=9), rngs)
        blank = (missing == 0).all((0, 2, 3))
        assert 1 <= blank.sum() <= 4
        np.testing.assert_array_equal(missing[:, ~blank], image[:, ~blank])
        blurred = shaded(image, only(blur_p=1.0, blur_max_sections=2), rngs)
        soft = blurred[0].std((1, 2)) < 0.95 * image[0].std((1, 2))
        assert 1 <= soft.sum() <= 2
        np.testing.assert_array_equal(blurred[0, ~soft], image[0, ~soft])
        np.testing.assert_array_equal(blurred[1], image[1])


def test_a_single_section_is_never_blanked_nor_misaligned():
    sampler = PatchSampler([textured_source()], (1, 48, 64), (1, 40, 50), only(missing_p=1.0, slip_p=1.0, shift_p=1.0))
    plain = PatchSampler([textured_source()], (1, 48, 64), (1, 40, 50))
    for step in range(5):
        np.testing.assert_array_equal(sampler.draw(step).image, plain.draw(step).image)


def test_contrast_is_linear_within_each_section_and_bounded():
    grey = np.random.default_rng(0).standard_normal((5, 20, 30)).astype(np.float32)
    changed = grey.copy()
    contrast(changed, 0.2, 0.3, np.random.default_rng(1))
    factors = []
    for before, after in zip(grey, changed):
        factor, offset = np.polyfit(before.ravel(), after.ravel(), 1)
        np.testing.assert_allclose(after, factor * before + offset, atol=1e-5)
        assert abs(factor - 1) <= 0.2 + 1e-5 and abs(offset) <= 0.3 + 1e-5
        factors.append(factor)
    assert np.ptp(factors) > 0.01


def test_gamma_keeps_order_and_range_of_each_section_and_leaves_flat_ones():
    grey = np.random.default_rng(0).standard_normal((5, 20, 30)).astype(np.float32)
    grey[2] = 1.5
    changed = grey.copy()
    gamma(changed, 0.8, np.random.default_rng(1))
    np.testing.assert_array_equal(changed[2], grey[2])
    for z in (0, 1, 3, 4):
        assert not np.array_equal(changed[z], grey[z])
        assert changed[z].min() == grey[z].min() and changed[z].max() == pytest.approx(grey[z].max(), abs=1e-5)
        assert (np.diff(changed[z].ravel()[np.argsort(grey[z].ravel())]) >= 0).all()


@pytest.mark.parametrize("name, value", [("flip_z_p", 1.5), ("elastic_p", -0.1), ("blur_p", float("nan")),
                                         ("missing_max_sections", 0), ("gamma_log2", -1.0), ("misalign_max_px", 0)])
def test_settings_that_have_no_meaning(name, value):
    with pytest.raises(WrongSetting, match=f"augmentation {name}: expected"):
        Augmentation(**{name: value})
