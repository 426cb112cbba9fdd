"""Scores of partitions on arrays solved by hand, against scikit-image, and on published segmentations."""
import h5py
import numpy as np
import pytest
import skimage.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.conftest import em_file
from znn.pipeline import metrics
from znn.pipeline.metrics import adapted_rand, agreement, dense_ids, pool, rand_split_merge, v_info, v_rand

PROOFREAD = ("S1", "S5", "S14", "S23", "S37", "S42", "S53")
TRUTH = np.array([[1, 1, 1, 1, 2, 2, 2, 2]])
MERGED = np.ones_like(TRUTH)
SPLIT = np.array([[1, 1, 2, 2, 3, 3, 3, 3]])
labels = hnp.arrays(np.int64, (2, 3, 7), elements=st.integers(0, 4))


def counts(predicted, truth=TRUTH):
    return agreement(truth, np.asarray(predicted))


def test_equal_partitions_are_perfect_whatever_their_numbers():
    same = counts(3 - TRUTH)
    assert v_rand(same) == 1 and v_info(same) == pytest.approx(1)
    assert adapted_rand(same) == (0, 1, 1) == adapted_rand(same, "skimage")
    assert metrics.variation_of_information(same) == (0, 0)


def test_a_merge_lowers_merge_scores_only():
    merged = counts(MERGED)
    assert rand_split_merge(merged) == (1, 0.5)              # 2 * 4^2 / 8^2 of the merged pairs are right
    assert v_rand(merged) == pytest.approx(2 / 3)
    assert v_info(merged) == 0                               # one segment tells nothing
    assert adapted_rand(merged) == pytest.approx((1 / 3, 0.5, 1))
    assert metrics.variation_of_information(merged) == (0, 1)     # one bit: which of two neurons


def test_a_split_lowers_split_scores_only():
    split = counts(SPLIT)
    assert rand_split_merge(split) == (0.75, 1)              # (2^2 + 2^2 + 4^2) / (4^2 + 4^2)
    assert metrics.variation_of_information(split) == (0.5, 0)    # one bit in half of the voxels
    assert v_info(split) == pytest.approx(2 * 1 / (1.5 + 1))      # I = 1, H(S) = 1.5, H(T) = 1


def test_self_pairs_are_what_the_conventions_differ_in():
    split = counts(SPLIT)
    assert adapted_rand(split, "cremi")[0] == pytest.approx(1 - 2 * 24 / (24 + 32))
    assert adapted_rand(split, "skimage")[0] == pytest.approx(1 - 2 * 16 / (16 + 24))


def test_loose_voxels_by_each_convention():
    loose = counts([[1, 1, 0, 0, 2, 2, 2, 2]])               # two voxels of neuron 1 drawn as boundary
    assert rand_split_merge(loose) == ((4 + 16 + 2) / 32, 1)     # each a segment of its own
    slip = 2 / 8
    assert adapted_rand(loose, "cremi")[1:] == ((20 + slip) / (20 + slip), (20 + slip) / 32)
    assert adapted_rand(loose, "skimage")[2] == pytest.approx((2 + 2 + 12) / 24)   # together one segment
    # I = H(T) = 1; H(S): segments of 2 and 4 of 8, and two of 1.
    assert v_info(loose) == pytest.approx(2 / (1 + 0.5 + 0.5 + 2 * 3 / 8))


def test_truth_zero_is_left_out():
    padded_truth = np.pad(TRUTH, ((0, 3), (0, 0)))
    padded = np.pad(SPLIT, ((0, 3), (0, 0)), constant_values=1)
    for score in (v_rand, v_info, rand_split_merge, metrics.variation_of_information):
        assert score(counts(padded, padded_truth)) == score(counts(SPLIT))


def test_undefined_is_none_never_nan():
    nothing = counts(MERGED, np.zeros_like(TRUTH))
    assert v_rand(nothing) is None and v_info(nothing) is None and metrics.variation_of_information(nothing) is None
    assert adapted_rand(nothing, "cremi") is None and adapted_rand(nothing, "skimage") is None
    assert v_info(counts(TRUTH, MERGED)) is None             # a single true segment has no information to find
    assert v_rand(counts(TRUTH, MERGED)) == pytest.approx(2 / 3)
    one_each = np.arange(1, 9)[None]
    assert adapted_rand(agreement(one_each, one_each), "skimage") is None       # not one pair
    assert metrics.pixel_error(TRUTH > 0, TRUTH > 1, np.zeros(TRUTH.shape, bool)) is None


def test_nothing_predicted_at_all():
    empty = counts(np.zeros_like(TRUTH))
    assert v_rand(empty) == pytest.approx(2 * 8 / (8 + 32))      # eight segments of one voxel
    assert adapted_rand(empty, "cremi")[0] == pytest.approx(1 - 2 / 33)
    assert metrics.variation_of_information(empty) == (0, 1)


@given(labels, labels.filter(lambda a: a.any()))
@settings(max_examples=60, deadline=None)
def test_against_scikit_image(predicted, truth):
    found = agreement(truth, predicted)
    expected = skimage.metrics.variation_of_information(truth, predicted, ignore_labels=[0])
    assert metrics.variation_of_information(found) == pytest.approx((expected[0], expected[1]), abs=1e-9)
    rand = adapted_rand(found, "skimage")
    if rand is not None:
        # scikit-image names precision the share of the true pairs, and recall that of the predicted ones.
        error, of_truth, of_predicted = skimage.metrics.adapted_rand_error(truth, predicted)
        assert rand == pytest.approx((error, of_predicted, of_truth), abs=1e-9)


@given(labels, labels)
@settings(max_examples=60, deadline=None)
def test_scores_stay_within_their_bounds_and_ignore_numbering(predicted, truth):
    found, renumbered = agreement(truth, predicted), agreement((5 - truth) * (truth > 0), predicted)
    for score in (v_rand, v_info):
        assert score(found) is None or -1e-9 <= score(found) <= 1 + 1e-9
        assert score(found) == (None if score(renumbered) is None else pytest.approx(score(renumbered)))


def test_pooling_is_the_table_of_segments_that_have_nothing_in_common():
    apart = np.concatenate([TRUTH, TRUTH + 2]), np.concatenate([SPLIT, MERGED + 3])
    pooled = pool([counts(SPLIT), counts(MERGED)])
    assert adapted_rand(pooled) == pytest.approx(adapted_rand(agreement(*apart)))
    assert v_rand(pooled) == pytest.approx(v_rand(agreement(*apart)))


def test_counts_do_not_overflow():
    many = np.ones((1, 2**17), np.int32)
    assert adapted_rand(agreement(many, many)) == (0, 1, 1)      # 2^34 pairs
    assert v_rand(agreement(many, many)) == 1


def test_ids_of_any_size_and_no_label():
    ids = np.array([[[0, 2**64 - 1, 2**63 + 5, 7, 7]]], np.uint64)
    assert dense_ids(ids).tolist() == [[[0, 0, 2, 1, 1]]]
    assert dense_ids(np.array([-1, 3, 3, 9])).tolist() == [0, 1, 1, 2]
    assert dense_ids(np.array([4, 9], np.uint8)).tolist() == [1, 2]      # no 0 among them: none is lost


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="cremi, skimage"):
        adapted_rand(counts(SPLIT), "snemi")
    with pytest.raises(ValueError, match=r"\(1, 8\).*\(1, 7\)"):
        counts(SPLIT[:, :7])


def test_pixel_error_counts_scored_voxels_only():
    predicted, truth = np.array([[1, 0, 1, 0]], bool), np.array([[1, 1, 0, 0]], bool)
    assert metrics.pixel_error(predicted, truth, np.ones((1, 4), bool)) == 0.5
    assert metrics.pixel_error(predicted, truth, np.array([[1, 1, 0, 1]], bool)) == pytest.approx(1 / 3)


def test_cremi_score_is_the_geometric_mean():
    assert metrics.cremi_score((0.5, 1.5), 0.08) == pytest.approx(0.4)


@pytest.mark.parametrize("name", PROOFREAD)
def test_published_rand_errors_of_proofread_segmentations(name):
    with h5py.File(em_file("haehn2014_proofreading.h5")) as file:
        truth, item = dense_ids(file["volumes/labels/neuron_ids"][:]), file[f"volumes/proofread/{name}"]
        found = agreement(truth, dense_ids(item[:]))
        assert adapted_rand(found, "cremi")[0] == pytest.approx(item.attrs["published_rand_error"], abs=5e-6)
        bits = item.attrs["published_vi"] / np.log(2)            # published in nats
        assert sum(metrics.variation_of_information(found)) == pytest.approx(bits, abs=1e-5)


@pytest.mark.parametrize("row, name", list(enumerate(["watershed", "gala_seg1", "gala_seg4"])))
def test_published_variation_of_information(row, name):
    with h5py.File(em_file("gala_fib_test.h5")) as file:
        truth = dense_ids(file["volumes/labels/neuron_ids"][:])
        predicted = dense_ids(file[f"volumes/predictions/{name}"][:])
        merge, split = file["published_vi"][row]
    assert metrics.variation_of_information(agreement(truth, predicted)) == pytest.approx((split, merge), abs=1e-8)
