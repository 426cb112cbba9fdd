import subprocess
import sys

import numpy as np
import pytest

from data import Volume, boundary_target, common_roi
from data.errors import WrongSetting
from data.phantom import main, phantom, write_phantom
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def made():
    return phantom((8, 160, 192), seed=3)


def test_types_and_shapes(made):
    assert made.raw.dtype == np.uint8 and made.neuron_ids.dtype == np.uint32 and made.membrane.dtype == np.uint8
    assert made.raw.shape == made.neuron_ids.shape == made.membrane.shape == (8, 160, 192)
    odd = phantom((3, 61, 83), 0, (40.0, 4.0, 3.5))
    assert odd.raw.shape == (3, 61, 83) and odd.resolution_zyx == (40.0, 4.0, 3.5)
    assert phantom((1, 1, 1)).raw.shape == (1, 1, 1)
    with pytest.raises(WrongSetting, match="at least 1 voxel"):
        phantom((0, 5, 5))


def test_the_seed_decides(made):
    again, other = phantom((8, 160, 192), seed=3), phantom((8, 160, 192), seed=4)
    for name in ("raw", "neuron_ids", "membrane"):
        np.testing.assert_array_equal(getattr(made, name), getattr(again, name))
        assert not np.array_equal(getattr(made, name), getattr(other, name))


def test_the_two_truths_agree(made):
    np.testing.assert_array_equal(made.neuron_ids == 0, made.membrane == 1)
    target = boundary_target(made.neuron_ids, "ids")
    assert (target != made.membrane).mean() < 0.01


def test_membranes_are_dark_and_thin(made):
    assert 0.1 < made.membrane.mean() < 0.35
    for raw, membrane in zip(made.raw, made.membrane):
        inside, border = raw[membrane == 0].astype(float), raw[membrane == 1].astype(float)
        assert border.mean() < inside.mean() - inside.std()


def test_processes_run_on_through_sections_with_a_drift(made):
    """Most of a section is the same process in the next one, and less so further on."""
    def same(step):
        a, b = made.neuron_ids[:-step], made.neuron_ids[step:]
        both = (a > 0) & (b > 0)
        return (a == b)[both].mean()
    assert 0.8 < same(1) < 1.0
    assert same(6) < same(1)
    counts = [len(np.unique(section)) for section in made.neuron_ids]
    assert min(counts) > 10


def test_sections_differ_in_grey_and_in_noise(made):
    means = made.raw.mean((1, 2))
    assert np.ptp(means) > 3
    assert np.corrcoef(made.raw[0].ravel(), made.raw[1].ravel())[0, 1] < 0.9


def test_grey_alone_does_not_tell_membranes(made):
    """Organelles and noise: the best threshold on raw grey errs more than a tenth as often as there is membrane."""
    grey, membrane = made.raw.ravel(), made.membrane.ravel().astype(bool)
    errors = [np.mean((grey < t) != membrane) for t in range(0, 256, 4)]
    assert min(errors) > 0.1 * membrane.mean()


def test_file_in_the_cremi_layout(tmp_path):
    path = tmp_path / "phantom.h5"
    made = write_phantom(path, (3, 61, 83), 1, (40.0, 4.0, 3.5), (37.0, 911.0, 911.0))
    for name, array in (("volumes/raw", made.raw), ("volumes/labels/neuron_ids", made.neuron_ids),
                        ("volumes/labels/membrane", made.membrane)):
        volume = Volume.open(path, name)
        np.testing.assert_array_equal(volume.read(), array)
        assert common_roi(Volume.open(path), volume) == (volume.roi, volume.roi)
        assert volume.resolution_zyx == (40.0, 4.0, 3.5) and volume.offset_zyx == (37.0, 911.0, 911.0)


def test_command_line(tmp_path, capsys):
    done = subprocess.run([sys.executable, "-W", "error", "-m", "data.phantom", str(tmp_path / "p.h5"),
                           "--shape", "2", "40", "50", "--seed", "1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "(2, 40, 50) voxels" in done.stdout and done.stderr == ""
    np.testing.assert_array_equal(Volume.open(tmp_path / "p.h5").read(), phantom((2, 40, 50), 1).raw)
    assert main([str(tmp_path / "p.h5"), "--shape", "1", "40", "50"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([str(tmp_path / "p.h5"), "--shape", "1", "40", "50", "--overwrite"]) == 0
    assert main([str(tmp_path / "nowhere" / "p.h5"), "--shape", "1", "4", "4"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
