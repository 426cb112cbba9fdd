"""The real stacks, where they are there."""
import numpy as np

from data import (
    IGNORE,
    Augmentation,
    PatchSampler,
    Roi,
    Source,
    Standardisation,
    Volume,
    class_counts,
    common_roi,
    standardised,
)
from tests.conftest import em_file


def test_isbi_patches():
    path = em_file("isbi2012_train.h5")
    raw = standardised(Volume.open(path), Standardisation())
    assert raw.shape == (30, 512, 512) and raw.resolution_zyx == (50.0, 4.0, 4.0)
    labels = Volume.open(path, "volumes/labels/membrane")
    one = Source(raw, labels, roi=Roi((0, 0, 0), (2, 512, 512)))
    counts = class_counts([one])
    assert counts.boundary == int(labels.read(one.roi).astype(bool).sum()) and sum(counts) == 2 * 512 * 512
    sampler = PatchSampler([one], (1, 208, 208), (1, 100, 100), Augmentation())
    assert sampler.position_counts() == [2 * 305 * 305]
    patch = sampler.draw(0)
    inside = patch.image[0, :, 54:154, 54:154]
    assert inside[patch.target == 1].mean() < inside[patch.target == 0].mean() - 0.5


def test_ids_and_membranes_of_ac4_agree():
    path = em_file("ac4_crop.h5")
    raw, part = Volume.open(path), Roi((0, 0, 0), (4, 512, 512))
    assert raw.offset_zyx == (1200.0, 0.0, 960.0)
    ids = Volume.open(path, "volumes/labels/neuron_ids").crop(part)
    mask = Volume.open(path, "volumes/labels/unlabeled").crop(part)
    target = Source(standardised(raw, Standardisation()), ids, "ids", mask=mask).target().read(part)
    membrane = Volume.open(path, "volumes/labels/membrane").read(part)
    known = target != IGNORE
    np.testing.assert_array_equal(known, mask.read() == 0)
    assert (target[known & (membrane == 0)] == 0).mean() > 0.95 and (target[known & (ids.read() == 0)] == 1).all()


def test_proofread_crop_lies_within_ac4():
    whole = Volume.open(em_file("ac4_crop.h5"))
    small = Volume.open(em_file("haehn2014_proofreading.h5"))
    in_whole, in_small = common_roi(whole, small)
    np.testing.assert_array_equal(whole.read(in_whole), small.read(in_small))
