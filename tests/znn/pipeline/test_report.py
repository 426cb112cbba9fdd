"""The table, report.json, report.html and pictures of an evaluation."""
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from znn.pipeline import partition
from znn.pipeline.boundary_scores import Truth
from znn.pipeline.errors import OutputExists, OutputNotWritable
from znn.pipeline.evaluation import evaluate
from znn.pipeline.pairing import Case, EvaluationSettings
from znn.pipeline.pictures import colour_boundaries, draw_overlay
from znn.pipeline.report import SCORES, check_output, format_table, write_report

SETTINGS = EvaluationSettings(prediction="p<b>.h5", truth="t.h5", coarse_step=0.25)
ABOUT = {"prediction": {"file": "p<b>.h5"}, "region": {"voxels_of_truth_zyx": [[4, 0, 0], [6, 24, 24]]}}


def case(kind="boundary", with_ids=True, all_boundary=False):
    boundary = np.zeros((2, 24, 24), bool)
    boundary[:, :, ::8] = True
    boundary |= all_boundary
    ids = partition.volume_components(~boundary)
    sections = partition.section_components(~boundary)
    truth = Truth(sections, boundary, np.ones_like(boundary), ids if with_ids else None)
    prediction = {"boundary": np.where(boundary, 0.9, 0.2).astype(np.float32), "mask": boundary, "segmentation": ids}
    return Case(kind, prediction[kind], truth, None, ABOUT)


@pytest.mark.parametrize("kind", ["boundary", "mask", "segmentation"])
def test_every_score_is_reported_with_threshold_and_convention(kind):
    report, pictures = evaluate(case(kind), SETTINGS)
    for name in SCORES:
        entry = report[name]
        assert entry["value"] == pytest.approx(1 if entry["better"] == "high" else 0), name
        assert entry["convention"] and "{" not in entry["convention"]
        assert entry["n_defined"] == entry["n_total"] == (2 if name in ("v_rand", "v_info") else 1)
        assert (entry["threshold"] is None) == (kind == "segmentation")
        assert "undefined" not in entry
    assert ("curves.png" in pictures) == (kind == "boundary") and "overlay.png" in pictures


def test_the_convention_asked_for_is_the_one_printed():
    settings = EvaluationSettings(prediction="p", truth="t", rand_convention="skimage")
    report, _ = evaluate(case("segmentation"), settings, overlay_sections=0)
    assert "skimage" in report["adapted_rand_error"]["convention"]
    assert "skimage: truth 0 excluded" in format_table(report)


def test_undefined_is_said_with_its_reason():
    report, _ = evaluate(case(with_ids=False), SETTINGS)
    for name in ("adapted_rand_error", "voi_split", "voi_merge", "cremi_score"):
        assert report[name]["value"] is None and report[name]["threshold"] is None
        assert report[name]["n_defined"] == 0 and "ids_dataset" in report[name]["undefined"]
    rows = {line.split()[0]: line for line in format_table(report).splitlines()}
    assert re.search(r"undefined +- +0/1 +.*ids_dataset", rows["voi_split"])
    assert re.search(r"1\.00000 +0\.\d+ +2/2 ", rows["v_rand"])


def test_a_truth_of_nothing_but_boundary_is_reported_all_the_same(tmp_path):
    report, pictures = evaluate(case(all_boundary=True), SETTINGS)
    assert [name for name in SCORES if report[name]["value"] is not None] == ["pixel_error"]
    write_report(tmp_path, report, pictures)
    assert json.loads((tmp_path / "report.json").read_text())["v_rand"]["n_defined"] == 0


def test_files_are_whole_and_the_page_needs_nothing_else(tmp_path):
    report, pictures = evaluate(case(), SETTINGS)
    written = write_report(tmp_path, report, pictures)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in written) == [
        "curves.png", "overlay.png", "report.html", "report.json"]  # no mistakes.png, for there are none
    read_back = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert read_back == json.loads(json.dumps(report))
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"https?://|<script|<link|src=\"(?!data:)", page)
    assert "p&lt;b&gt;.h5" in page and "p<b>" not in page
    assert all(f"<td>{name}</td>" in page for name in SCORES)


def test_a_report_is_not_written_over_unless_told(tmp_path):
    check_output(tmp_path / "new" / "scores", overwrite=False)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(OutputExists, match="overwrite=true"):
        check_output(tmp_path, overwrite=False)
    check_output(tmp_path, overwrite=True)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="file"):
        check_output(tmp_path / "file" / "scores", overwrite=False)


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "report.html").mkdir()                       # what is to be written is in the way as a folder
    with pytest.raises(OutputNotWritable, match=r"report\.html"):
        write_report(tmp_path, *evaluate(case(), SETTINGS, overlay_sections=0))
    assert not (tmp_path / "report.json").exists() and not list(tmp_path.glob(".report*"))


def test_mistakes_are_listed_in_voxels_of_the_truth_and_drawn():
    other = replace(case(), about=ABOUT | {"region": {"voxels_of_truth_zyx": [[4, 5, 6], [6, 29, 30]]}})
    other.prediction[1, :, 8] = 0.1
    report, pictures = evaluate(other, SETTINGS, overlay_sections=0)
    merge, = report["mistakes"]
    assert (merge["kind"], merge["z"], merge["x"]) == ("merge", 5, 14) and merge["y"] >= 5
    assert imread(io.BytesIO(pictures["mistakes.png"][1])).std() > 0
    assert "mistakes.png" not in evaluate(other, SETTINGS, worst=0)[1]


def test_overlay_colours_found_missed_and_false():
    predicted, truth = np.array([[1, 0, 1, 0, 1]], bool), np.array([[1, 1, 0, 0, 1]], bool)
    scored = np.array([[1, 1, 1, 1, 0]], bool)
    grey = np.full((1, 5), 0.5)
    found, missed, false, inside, unknown = colour_boundaries(grey, predicted, truth, scored)[0].tolist()
    assert found[1] > max(found[0], found[2])                # green
    assert missed[0] > max(missed[1:])                       # red
    assert false[2] > max(false[:2])                         # blue
    assert inside == unknown == [127, 127, 127]


def test_overlay_shows_as_many_sections_as_there_are():
    boundary = np.zeros((2, 20, 20), bool)
    one, two, more = (imread(io.BytesIO(draw_overlay(None, boundary, boundary, ~boundary, 25, n))) for n in (1, 2, 9))
    assert two.shape == more.shape and two.shape[1] == 2 * one.shape[1]
