import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import DataError, Roi, Standardisation, Volume, as_float, normalise, scale_map, scaled_map, standardised
from data.errors import NotFinite

SHAPE = (19, 31, 23)


def grey(dtype=np.uint8, shape=SHAPE):
    rng = np.random.default_rng(1)
    return (rng.integers(0, 200, shape) + rng.integers(0, 50, (shape[0], 1, 1))).astype(dtype)


def by_hand(array, axes):
    array = array.astype(np.float64)
    mean, std = array.mean(axes, keepdims=True), array.std(axes, keepdims=True)
    return (array - mean) / np.where(std > 0, std, np.inf)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("kind, axes", [("section", (1, 2)), ("volume", (0, 1, 2))])
def test_standardised(dtype, kind, axes):
    array = grey(dtype)
    result = standardised(Volume.from_array(array, (40, 4, 3.5)), Standardisation(kind))
    assert result.dtype == np.float32 and result.read().dtype == np.float32 and result.resolution_zyx == (40, 4, 3.5)
    np.testing.assert_allclose(result.read(), by_hand(array, axes), atol=1e-5)


@pytest.mark.parametrize("kind", ["section", "volume"])
def test_a_part_has_the_statistics_of_the_whole(kind, monkeypatch):
    whole = standardised(Volume.from_array(grey()), Standardisation(kind)).read()
    roi = Roi((5, 3, 2), (9, 11, 13))
    fresh = standardised(Volume.from_array(grey()), Standardisation(kind))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fresh)).read(roi), whole[roi.slices])
    monkeypatch.setattr(normalise, "BAND_VOXELS", 4 * SHAPE[2])
    banded = standardised(Volume.from_array(grey()), Standardisation(kind)).read(roi)
    np.testing.assert_allclose(banded, whole[roi.slices], atol=1e-6)


@pytest.mark.parametrize("dtype, value", [(np.uint8, 17), (np.float32, 1234.567), (np.float64, 0.1), (np.uint8, 0)])
def test_a_blank_section_is_zero(dtype, value):
    array = grey(dtype)
    array[3] = value
    result = standardised(Volume.from_array(array), Standardisation("section")).read()
    assert (result[3] == 0).all() and result[4].std() == pytest.approx(1, abs=1e-5)
    constant = standardised(Volume.from_array(np.full(SHAPE, value, dtype)), Standardisation("volume"))
    assert (constant.read() == 0).all()


def test_large_values_keep_their_contrast():
    array = grey(np.float64) + 1e8
    result = standardised(Volume.from_array(array), Standardisation("section")).read()
    np.testing.assert_allclose(result, by_hand(grey(), (1, 2)), atol=1e-4)


def test_nan_is_found_by_standardising():
    array = grey(np.float32)
    array[2, 30, 22] = np.nan
    with pytest.raises(NotFinite, match=r"\(2, 30, 22\)"):
        standardised(Volume.from_array(array), Standardisation()).read(Roi((2, 0, 0), (1, 1, 1)))


def test_range_follows_from_the_type_not_from_the_values():
    dark = np.array([[[0, 1]]])
    np.testing.assert_array_equal(as_float(dark.astype(np.uint8)), np.float32(dark / 255))
    np.testing.assert_array_equal(as_float(dark.astype(np.uint16)), np.float32(dark / 65535))
    np.testing.assert_array_equal(as_float(dark.astype(bool)), dark)
    np.testing.assert_array_equal(as_float(dark * 300.0), dark * 300.0)
    none = standardised(Volume.from_array(dark.astype(np.uint8)), Standardisation("none"))
    np.testing.assert_array_equal(none.read(), as_float(dark.astype(np.uint8)))


def test_specification_round_trip_and_unknown_things():
    for kind in normalise.KINDS:
        spec = Standardisation(kind)
        assert Standardisation.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    with pytest.raises(DataError, match="expected one of section, volume, none, found 'divide'"):
        Standardisation("divide")
    with pytest.raises(DataError, match=r"unknown keys \['sigma'\]"):
        Standardisation.from_dict({"kind": "none", "sigma": 1})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_scalings_of_a_map(values):
    p = np.array(values, np.float32)
    np.testing.assert_allclose(scale_map(p), 2 * p - 1, atol=1e-6)
    stretched = scale_map(p, "stack")
    if np.ptp(p) > 1e-3:
        assert stretched.min() == pytest.approx(-1, abs=1e-5) and stretched.max() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(stretched).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_scaled_map_of_a_part_knows_the_whole(dtype):
    p = np.random.default_rng(0).uniform(0.2, 0.7, SHAPE)
    p = (p * 255).astype(np.uint8) if dtype == np.uint8 else p.astype(np.float32)
    roi = Roi((3, 4, 5), (2, 3, 4))
    volume = Volume.from_array(p)
    np.testing.assert_allclose(scaled_map(volume).read(roi), 2 * as_float(p)[roi.slices] - 1, atol=1e-6)
    np.testing.assert_array_equal(scaled_map(volume, "stack").read(roi), scale_map(as_float(p), "stack")[roi.slices])
    with pytest.raises(DataError, match="expected one of fixed, stack"):
        scaled_map(volume, "minmax")
