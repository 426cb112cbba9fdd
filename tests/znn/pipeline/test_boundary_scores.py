"""Segments out of boundaries, sweeps over thresholds, and the scores of whole maps."""
import h5py
import numpy as np
import pytest

from data.errors import WrongSetting
from tests.conftest import em_file
from znn.pipeline import metrics, partition
from znn.pipeline.boundary_scores import BETTER, Truth, Value, score_flooded, score_map, score_mask, score_segmentation
from znn.pipeline.sweep import best_threshold, coarse_thresholds, sweep


def picture(text):
    """A section drawn as text: '#' is boundary."""
    return np.array([[c == "#" for c in line] for line in text.split()])[None]


TWO_CELLS = picture("...#... ...#... ...#... ...#...")
LEAKY = picture("...#... ....... ...#... ...#...")


def truth_of(boundary, ids=None):
    return Truth(partition.section_components(~boundary), boundary, np.ones(boundary.shape, bool), ids)


def test_components_share_an_edge_and_stay_in_their_section():
    diagonal = picture("#. .#")
    both = np.concatenate([diagonal, diagonal])
    assert partition.section_components(~both).tolist() == [[[0, 1], [2, 0]]] * 2
    assert partition.volume_components(~both).tolist() == [[[0, 1], [2, 0]]] * 2      # one through both sections


def test_components_of_ids_split_profiles_of_one_neuron():
    ids = np.array([[[7, 0, 7, 9, 9]]], np.uint64)
    assert partition.section_components(ids).tolist() == [[[1, 0, 2, 3, 3]]]


def test_thinning_leaves_one_line_however_thick_the_boundary():
    for text in ("..#.. ..#..", ".###. .###."):
        section = partition.section_components(~picture(text))[0]
        assert partition.thin_boundaries(section).tolist() == [[1, 1, 0, 2, 2]] * 2
    assert not partition.thin_boundaries(np.zeros((2, 3), int)).any()


def test_growing_follows_the_height_and_fills_everything():
    seeds = np.array([[1, 0, 0, 0, 2]])
    assert partition.grow(seeds, np.array([[0, 0.9, 0.1, 0.1, 0]])).tolist() == [[1, 1, 2, 2, 2]]
    assert not partition.grow(np.zeros((1, 5), int), np.zeros((1, 5))).any()


def test_growing_leaves_out_what_cannot_change_anything():
    from skimage.segmentation import watershed

    rng = np.random.default_rng(0)
    height = rng.random((3, 31, 23))
    seeds = partition.volume_components(height < 0.3)
    assert np.array_equal(partition.grow(seeds, height), watershed(height, seeds, connectivity=1))


def test_small_segments_are_dropped():
    assert partition.drop_small(np.array([1, 1, 2, 0]), 2).tolist() == [1, 1, 0, 0]


def test_sweep_finds_the_best_of_the_fine_thresholds():
    def peak_at(place):
        return lambda t: {"f": Value(-abs(t - place))}

    for place in (0.01, 0.33, 0.5, 0.97, 0.99):
        scores = sweep(peak_at(place), {"f": max})
        assert best_threshold(scores, "f", max) == place
        assert len(scores) <= 29 and list(scores) == sorted(scores)


def test_sweep_refines_around_each_score_by_its_own_sense():
    scores = sweep(lambda t: {"a": Value(-abs(t - 0.22)), "b": Value(abs(t - 0.78))}, {"a": max, "b": min})
    assert best_threshold(scores, "a", max) == 0.22
    assert best_threshold(scores, "b", min) == 0.78


def test_ties_give_the_middle_threshold_and_undefined_none():
    assert best_threshold({t: {"f": Value(1.0)} for t in (0.1, 0.5, 0.9)}, "f", max) == 0.5
    assert best_threshold({0.5: {"f": Value(None)}}, "f", max) is None
    only = {0.1: {"f": Value(None)}, 0.2: {"f": Value(0.3)}}
    assert best_threshold(only, "f", max) == 0.2


def test_thresholds_reach_close_to_both_ends():
    found = coarse_thresholds(0.25, 0.01)
    assert found == [0.01, 0.25, 0.5, 0.75, 0.99]
    with pytest.raises(WrongSetting, match="fine_step"):
        coarse_thresholds(0.01, 0.05)


def test_a_perfect_map_is_perfect_by_every_score():
    boundary = np.concatenate([TWO_CELLS, TWO_CELLS])
    ids = partition.volume_components(~boundary)
    probability = np.where(boundary, 0.8, 0.1)
    found = score_map(truth_of(boundary, ids), probability)
    assert found.keys() == BETTER.keys()
    for name, better in BETTER.items():
        assert found[name].best.value == pytest.approx(1 if better is max else 0), name
        assert 0.1 < found[name].threshold <= 0.8, name


def test_a_leak_is_found_by_the_rand_scores_and_hardly_by_the_pixel_error():
    found = score_mask(truth_of(TWO_CELLS), LEAKY)
    # One segment of 24 foreground voxels over two of 12: V_split 1, V_merge 1/2.
    assert found["v_rand"].best.value == pytest.approx(2 / 3)
    assert found["v_info"].best.value == 0
    assert found["pixel_error"].best.value == pytest.approx(1 / 28)


def test_thick_boundaries_cost_pixels_but_not_v_rand():
    thick = picture("..###.. ..###.. ..###.. ..###..")
    found = score_mask(truth_of(TWO_CELLS), thick)
    assert found["v_rand"].best.value == 1
    assert found["rand_f_watershed"].best.value == 1
    assert found["rand_f_components"].best.value == pytest.approx(1 - metrics.adapted_rand(
        metrics.agreement(partition.section_components(~TWO_CELLS), partition.section_components(~thick)))[0])
    assert found["rand_f_components"].best.value < 0.9
    assert found["pixel_error"].best.value == pytest.approx(8 / 28)


def test_means_are_over_defined_sections_only():
    truth = truth_of(np.concatenate([TWO_CELLS, np.ones_like(TWO_CELLS)]))
    found = score_mask(truth, np.concatenate([TWO_CELLS, TWO_CELLS]))
    assert found["v_rand"].best.sections == [1, None]
    assert found["v_rand"].best.value == 1


def test_a_small_seed_may_be_dropped_before_flooding():
    seeds = partition.section_components(~picture("...#... ...#... ####... .###..."))      # a speck below on the left
    truth = truth_of(TWO_CELLS)
    kept = score_flooded(truth, TWO_CELLS * 0.9, seeds, (1,))["rand_f_watershed"]
    best = score_flooded(truth, TWO_CELLS * 0.9, seeds, (1, 2))["rand_f_watershed"]
    assert kept.value < 1 and best.value == 1
    assert best.details["smallest_seed_px"] == 2


def test_volume_scores_need_ids_through_the_volume():
    found = score_map(truth_of(TWO_CELLS), TWO_CELLS * 0.9)
    for name in ("adapted_rand_error", "voi", "cremi_score"):
        assert found[name].best.value is None and found[name].threshold is None
    assert found["v_rand"].best.value == 1


def test_a_segmentation_is_scored_as_it_is():
    boundary = np.concatenate([TWO_CELLS, TWO_CELLS])
    ids = partition.volume_components(~boundary)
    swapped = ids.copy()
    swapped[1] = np.array([0, 2, 1])[ids[1]]               # the two neurons change places: fine in 2D, wrong in 3D
    found = score_segmentation(truth_of(boundary, ids), swapped, boundary)
    assert found["v_rand"].best.value == 1 == found["rand_f_components"].best.value
    assert found["pixel_error"].best.value == 0
    assert found["adapted_rand_error"].best.value == pytest.approx(0.5)
    assert (found["voi"].best.details["split"], found["voi"].best.details["merge"]) == pytest.approx((1, 1))
    assert found["cremi_score"].best.value == pytest.approx(1)
    assert all(score.threshold is None and score.curve == [] for score in found.values())


def test_published_unet_map():
    with h5py.File(em_file("isbi2012_unet_prediction.h5")) as file:
        truth = truth_of(file["volumes/labels/membrane"][:] > 0)
        found = score_mask(truth, file["volumes/predictions/best_membrane"][:] > 0)
    assert found["v_rand"].best.value == pytest.approx(0.9818, abs=5e-4)
    assert found["v_info"].best.value == pytest.approx(0.9833, abs=5e-4)
    assert found["v_rand"].best.sections == pytest.approx([0.9832, 0.9860, 0.9702, 0.9854, 0.9844], abs=1e-4)
    assert found["v_info"].best.sections == pytest.approx([0.9840, 0.9876, 0.9789, 0.9862, 0.9798], abs=1e-4)
