"""Which voxels are compared, and what their numbers are taken for."""
import h5py
import numpy as np
import pytest

from data.errors import DataError, Mismatch, MissingDataset, WrongSetting, WrongType
from data.writing import write_volume
from tests.conftest import em_file
from znn.pipeline.errors import UndefinedVolume
from znn.pipeline.evaluation import score
from znn.pipeline.pairing import MEMBRANE, NEURON_IDS, EvaluationSettings, load, take_prediction

RESOLUTION, PLACE = (40.0, 4.0, 3.5), (37.0, 911.0, 911.0)
SHAPE = (7, 61, 83)
BOUNDARY = "volumes/predictions/boundary"


def shifted(voxels):
    return tuple(o + v * r for o, v, r in zip(PLACE, voxels, RESOLUTION))


class Stack:
    """A truth and a right prediction of all of it, as arrays that tests change before `write`."""

    def __init__(self, folder):
        rng = np.random.default_rng(3)
        ids = np.repeat(np.repeat(rng.integers(1, 9, (7, 7, 9)), 9, axis=1), 10, axis=2)[:, :61, :83].astype(np.uint64)
        ids[:, ::9] = ids[:, :, ::10] = 0
        raw = rng.integers(0, 255, SHAPE, np.uint8)
        self.folder = folder
        self.truth = {MEMBRANE: (ids == 0).astype(np.uint8), NEURON_IDS: ids, "volumes/raw": raw}
        self.prediction = np.where(ids == 0, 0.9, 0.1).astype(np.float32)

    def write(self, prediction=None, offset=PLACE, resolution=RESOLUTION, **settings):
        """Two files, and the settings that compare them."""
        files = self.folder / "p.h5", self.folder / "truth.h5"
        values = self.prediction if prediction is None else prediction
        write_volume(files[0], {BOUNDARY: (values, {})}, resolution, offset)
        write_volume(files[1], {name: (labels, {}) for name, labels in self.truth.items()}, RESOLUTION, PLACE)
        return EvaluationSettings(prediction=str(files[0]), truth=str(files[1]), **settings)


@pytest.fixture
def stack(tmp_path):
    return Stack(tmp_path)


def test_whole_stack(stack):
    case = load(stack.write())
    assert case.kind == "boundary" and case.prediction.shape == SHAPE == case.raw.shape
    assert case.truth.boundary.mean() == stack.truth[MEMBRANE].mean() and case.truth.scored.all()
    assert len(np.unique(case.truth.ids)) == 9                 # of neuron_ids, though the 2D truth is membrane
    assert case.about["region"]["voxels_of_truth_zyx"] == [[0, 0, 0], list(SHAPE)]


@pytest.mark.parametrize("moved", [(2, 5, 3), (-1, 0, 7)])
def test_prediction_and_truth_are_paired_by_offset(stack, moved):
    lo, hi = np.maximum(moved, 0), np.minimum(np.array(SHAPE), np.array(SHAPE) + moved)
    prediction = np.zeros(SHAPE, np.float32)
    inside = tuple(slice(b, e) for b, e in zip(lo, hi))
    there = tuple(slice(b - m, e - m) for b, e, m in zip(lo, hi, moved))
    prediction[there] = stack.prediction[inside]
    case = load(stack.write(prediction, offset=shifted(moved)))
    assert case.about["region"]["voxels_of_truth_zyx"] == [lo.tolist(), hi.tolist()]
    assert np.array_equal(case.prediction, stack.prediction[inside])
    assert np.array_equal(case.truth.boundary, stack.truth[MEMBRANE][inside] > 0)
    assert np.array_equal(case.raw, stack.truth["volumes/raw"][inside])


def test_z_range_counts_the_sections_of_the_truth(stack):
    case = load(stack.write(stack.prediction[2:], offset=shifted((2, 0, 0)), z_range=[3, 5]))
    assert np.array_equal(case.prediction, stack.prediction[3:5])
    assert case.about["region"]["offset_zyx_nm"] == list(shifted((3, 0, 0)))


@pytest.mark.parametrize("z_range", [[5, 5], [3, 9], [-1, 4], [2]])
def test_a_z_range_without_sections_is_refused(stack, z_range):
    with pytest.raises(WrongSetting, match=r"z_range: expected .* \[0, 7\]"):
        load(stack.write(z_range=z_range))


def test_a_z_range_that_the_prediction_lacks_is_refused(stack):
    with pytest.raises(Mismatch, match="found 2 to 6"):
        load(stack.write(stack.prediction[2:], offset=shifted((2, 0, 0)), z_range=[1, 4]))


def test_volumes_that_do_not_fit_are_refused(stack):
    with pytest.raises(Mismatch, match="overlap"):
        load(stack.write(offset=shifted((70, 0, 0))))
    with pytest.raises(Mismatch, match="resolution"):
        load(stack.write(resolution=(30.0, 4.0, 3.5)))


def test_ids_stand_in_for_membrane(stack):
    del stack.truth[MEMBRANE]
    case = load(stack.write())
    assert case.about["truth"] == {"file": case.about["truth"]["file"], "dataset": NEURON_IDS, "taken_as": "ids"}
    assert case.truth.boundary[stack.truth[NEURON_IDS] == 0].all()
    assert not case.truth.sections[case.truth.ids == 0].any()


def test_without_ids_the_volume_has_no_truth(stack):
    del stack.truth[NEURON_IDS], stack.truth["volumes/raw"]
    case = load(stack.write())
    assert case.truth.ids is None and case.raw is None


def test_masked_voxels_are_not_scored(stack):
    ignored = np.zeros(SHAPE, np.uint8)
    ignored[:, :30] = 255
    stack.truth["volumes/labels/unlabeled"] = ignored
    wrong_there = np.where(ignored, 1 - stack.prediction, stack.prediction)
    settings = stack.write(wrong_there, mask_dataset="volumes/labels/unlabeled")
    case = load(settings)
    assert not any(part[:, :30].any() for part in (case.truth.scored, case.truth.ids, case.truth.sections))
    assert score(case, settings)["pixel_error"].best.value == 0


def test_no_label_of_64_bits_is_not_scored(stack):
    stack.truth[NEURON_IDS][:, :30] = 2**64 - 1
    case = load(stack.write(truth_dataset=NEURON_IDS))
    assert not case.truth.scored[:, :30].any() and not case.truth.ids[:, :30].any()


def test_missing_datasets_list_what_there_is(stack):
    with pytest.raises(MissingDataset, match=BOUNDARY):
        load(stack.write(prediction_dataset="volumes/predictions/boundry"))
    with pytest.raises(MissingDataset, match=MEMBRANE):
        load(stack.write(truth_dataset="volumes/labels/mebrane"))
    stack.truth = {"volumes/raw": stack.truth["volumes/raw"]}
    with pytest.raises(MissingDataset, match="volumes/raw"):
        load(stack.write())


def test_labels_that_are_not_membrane_ask_what_they_are(stack):
    stack.truth[MEMBRANE] = (stack.truth[NEURON_IDS]).astype(np.uint8)
    with pytest.raises(WrongType, match="truth_kind=ids"):
        load(stack.write())
    assert load(stack.write(truth_kind="ids")).about["truth"]["taken_as"] == "ids"


def test_unknown_settings_name_the_known_ones(stack):
    with pytest.raises(WrongSetting, match="cremi, skimage"):
        load(stack.write(rand_convention="snemi3d"))
    with pytest.raises(WrongSetting, match="seed_sizes_px"):
        load(stack.write(seed_sizes_px=[]))


def test_nan_in_a_map_is_refused_with_its_place(stack):
    stack.prediction[2, 3, 5] = np.nan
    with pytest.raises(DataError, match=r"\(2, 3, 5\)"):
        load(stack.write())


@pytest.mark.parametrize("dtype, scale, kind, values", [
    (np.float32, None, "boundary", [0, 0.5, 1]),
    (np.uint8, None, "boundary", [0, 51, 255]),
    (np.uint8, 1 / 250, "boundary", [0, 1, 250]),
    (np.uint16, 1 / 1000, "boundary", [0, 500, 1000]),
    (np.uint8, None, "mask", [0, 1, 1]),
    (np.uint8, 1 / 255, "boundary", [0, 1, 1]),
    (bool, None, "mask", [0, 1, 0]),
    (np.uint16, None, "segmentation", [0, 1, 1]),
    (np.uint64, None, "segmentation", [0, 2**64 - 2, 5]),
])
def test_what_numbers_are_taken_for(dtype, scale, kind, values):
    found, taken = take_prediction(np.array(values, dtype), "auto", "f:d", scale)
    assert found == kind
    if kind == "boundary":
        factor = 1 if dtype == np.float32 else scale or 1 / 255
        assert taken == pytest.approx(np.array(values) * factor, abs=1e-6) and taken.dtype == np.float32


def test_what_was_asked_for_is_not_guessed():
    ones = np.array([0, 1, 1], np.uint8)
    assert take_prediction(ones, "boundary", "f:d")[1].max() == pytest.approx(1 / 255)
    assert take_prediction(ones, "segmentation", "f:d")[0] == "segmentation"
    with pytest.raises(WrongType, match="f:d"):
        take_prediction(ones.astype(np.float32), "segmentation", "f:d")
    with pytest.raises(UndefinedVolume, match=r"-3\.5 to 1"):
        take_prediction(np.array([-3.5, 1]), "auto", "f:d")


def test_a_published_segmentation_from_its_file():
    path = str(em_file("haehn2014_proofreading.h5"))
    settings = EvaluationSettings(prediction=path, truth=path, prediction_dataset="volumes/proofread/S53")
    with h5py.File(path) as file:
        published = file["volumes/proofread/S53"].attrs["published_rand_error"]
    assert score(load(settings), settings)["adapted_rand_error"].best.value == pytest.approx(published, abs=5e-6)


def test_a_published_map_against_the_whole_stack_by_offset():
    settings = EvaluationSettings(
        prediction=str(em_file("isbi2012_unet_prediction.h5")), truth=str(em_file("isbi2012_train.h5")),
        prediction_dataset="volumes/predictions/best_membrane",
    )
    case = load(settings)
    assert case.about["region"]["voxels_of_truth_zyx"] == [[25, 0, 0], [30, 512, 512]]
    assert score(case, settings)["v_rand"].best.value == pytest.approx(0.9818, abs=5e-4)
