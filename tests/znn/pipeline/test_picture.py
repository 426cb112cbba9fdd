import numpy as np
import pytest
from matplotlib.image import imread

from data import write_volume
from znn.pipeline import picture

RESOLUTION = (40.0, 4.0, 3.5)


@pytest.fixture
def files(tmp_path):
    """A stack of 5 sections and a map of sections 1 to 3, cut by 2 and 3 pixels at the low faces."""
    shape = (5, 20, 30)
    raw = np.arange(np.prod(shape)).reshape(shape).astype(np.uint16)
    membrane = np.zeros(shape, np.uint8)
    membrane[2, 7] = 1
    write_volume(tmp_path / "stack.h5", {"volumes/raw": (raw, {}), "volumes/labels/membrane": (membrane, {})},
                 RESOLUTION, (0.0, 0.0, 0.0))
    probability = np.zeros((3, 18, 27), np.float32)
    probability[1, 9] = 1.0
    write_volume(tmp_path / "boundary.h5", {"volumes/predictions/boundary": (probability, {})},
                 RESOLUTION, (40.0, 8.0, 10.5))
    return tmp_path


def arguments(folder, *more):
    return [str(folder / name) for name in ("stack.h5", "boundary.h5", "out.png")] + list(more)


def test_panels_are_raw_truth_and_boundary_laid_over_each_other(files):
    assert picture.main(arguments(files, "--section", "2")) == 0
    shown = imread(files / "out.png")[..., 0]
    height, width = 18, 27
    raw, truth, boundary = (shown[:, at:at + width] for at in np.arange(3) * (width + 4))
    assert shown.shape == (height, 3 * width + 8)
    assert raw[0, 0] == 0 and raw[-1, -1] == 1 and (np.diff(raw.astype(float), axis=0) >= 0).all()
    assert np.flatnonzero(truth.all(axis=1)).tolist() == [5] and truth.sum() == width
    assert np.flatnonzero(boundary.all(axis=1)).tolist() == [9] and boundary.sum() == width


@pytest.mark.parametrize("more, message", [
    (["--section", "4"], "boundary.h5"),
    (["--section", "5"], "which has 0..4"),
    (["--labels", "volumes/labels/none"], "volumes/labels/membrane"),
])
def test_what_cannot_be_shown_is_one_line_and_no_file(files, capsys, more, message):
    assert picture.main(arguments(files, *more)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert not (files / "out.png").exists()
