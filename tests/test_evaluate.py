"""evaluate.py as a command: what it prints, writes and refuses."""
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import evaluate
from data.volume import Volume
from data.writing import write_volume
from znn.pipeline.report import SCORES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def files(tmp_path):
    """A truth of five sections, and a map of sections 1 to 4 that leaks in section 2."""
    boundary = np.zeros((5, 31, 37), np.uint8)
    boundary[:, :, ::9] = boundary[:, ::10] = 1
    leaky = np.where(boundary, 0.9, 0.2).astype(np.float32)
    leaky[2, 12:15, 9] = 0.2
    write_volume(tmp_path / "truth.h5", {"volumes/labels/membrane": (boundary, {})}, (40, 4, 3.5), (37, 911, 911))
    write_volume(tmp_path / "map.h5", {"volumes/predictions/boundary": (leaky[1:], {})}, (40, 4, 3.5), (77, 911, 911))
    return [f"prediction={tmp_path / 'map.h5'}", f"truth={tmp_path / 'truth.h5'}", f"output={tmp_path / 'scores'}"]


def run(monkeypatch, capsys, *arguments):
    """Exit status, and what was printed to the two streams."""
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *arguments])
    try:
        evaluate.main()
        status = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = 0 if stop.code in (None, 0) else 1
    return status, *capsys.readouterr()


def test_scores_are_printed_and_written(files, tmp_path, monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, *files)
    assert "warning: the prediction covers 80.0% of the truth" in err
    report = json.loads((tmp_path / "scores" / "report.json").read_text())
    assert status == 0 and all(name in out for name in SCORES)
    assert "voxels (1, 0, 0) to (5, 31, 37)" in out and "report.html" in out
    perfect = [value == pytest.approx(1) for value in report["v_rand"]["sections"]]
    assert perfect == [True, False, True, True]
    assert report["voi_split"]["value"] is None and "undefined" in out      # membrane alone says nothing in 3D


def test_sections_are_chosen_by_the_truth(files, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, capsys, *files, "z_range=[3,5]", "overlay_sections=0")[0] == 0
    report = json.loads((tmp_path / "scores" / "report.json").read_text())
    assert report["v_rand"]["value"] == pytest.approx(1) and report["v_rand"]["n_total"] == 2


@pytest.mark.parametrize("change, message", [
    (["prediction=absent.h5"], "absent.h5: no such file"),
    (["prediction_dataset=volumes/boundary"], "volumes/predictions/boundary (4, 31, 37) float32"),
    (["z_range=[0,3]"], "change z_range"),
    (["coarse_step=2"], "coarse_step"),
    (["rand_convention=snemi"], "cremi, skimage"),
    (["zrange=[1,2]"], "z_range"),
    (["overlay_sections=-1"], "overlay_sections: expected 0 or a number above it, found -1"),
    (["worst=-2"], "worst: expected 0 or a number above it, found -2"),
    (["raw_dataset=volumes/grey"], "volumes/grey"),
])
def test_what_cannot_be_done_is_said_and_nothing_written(files, tmp_path, monkeypatch, capsys, change, message):
    status, _, err = run(monkeypatch, capsys, *files, *change)
    assert status == 1 and err.startswith("error: ") and message in err
    assert not (tmp_path / "scores").exists()


def test_a_report_is_kept_unless_told(files, tmp_path, monkeypatch, capsys):
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "report.json").write_text("kept")
    status, _, err = run(monkeypatch, capsys, *files)
    assert status == 1 and "overwrite=true" in err
    assert (tmp_path / "scores" / "report.json").read_text() == "kept"
    assert run(monkeypatch, capsys, *files, "overwrite=true", "z_range=[1,2]")[0] == 0


def test_as_a_program(files):
    command = [sys.executable, "evaluate.py", *files, "truth=absent.h5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: absent.h5") and "Traceback" not in done.stderr


def test_segments_are_written_and_scored_at_the_threshold_kept_with_the_map(files, tmp_path, monkeypatch, capsys):
    with h5py.File(tmp_path / "map.h5", "a") as file:
        file["volumes/predictions/boundary"].attrs["threshold"] = 0.5
    status, out, _ = run(monkeypatch, capsys, *files, "segment.method=watershed", "segment.ids=uint32")
    report = json.loads((tmp_path / "scores" / "report.json").read_text())
    made = Volume.open(tmp_path / "scores" / "segmentation.h5", "volumes/labels/neuron_ids")
    ids = made.read()
    assert status == 0 and "segments by watershed: v_rand" in out and "at the threshold 0.5: v_rand" in out
    assert ids.dtype == np.uint32 and made.offset_zyx == (77, 911, 911) and made.resolution_zyx == (40, 4, 3.5)
    assert ids.all() and report["segmentation"]["segments"] == np.unique(ids).size
    # Three of the four sections are as they should be, one joins two of 16 cells; every cell keeps an id of its own.
    assert report["at_threshold"]["v_rand"] == pytest.approx(report["v_rand"]["value"])
    assert report["segmentation"]["rand_f_watershed"] == pytest.approx(report["rand_f_watershed"]["value"])


def test_segments_need_a_boundary_map_and_a_threshold(files, monkeypatch, capsys):
    status, _, err = run(monkeypatch, capsys, *files, "segment.method=components")
    assert status == 1 and "give it as segment.threshold=<number>" in err
    status, _, err = run(monkeypatch, capsys, *files, "segment.method=components", "prediction_kind=mask")
    assert status == 1 and "taken as mask" in err
    status, _, err = run(monkeypatch, capsys, *files, "threshold=2")
    assert status == 1 and "threshold: expected a number above 0" in err
