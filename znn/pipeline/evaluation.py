"""Scores and report of a prediction that has been paired with its truth."""
from dataclasses import asdict
from pathlib import Path

import numpy as np

from data.targets import BOUNDARY, boundary_target
from data.writing import write_volume
from znn import __version__
from znn.pipeline.boundary_scores import score_at, score_map, score_mask, score_segmentation
from znn.pipeline.mistakes import KINDS, mistakes
from znn.pipeline.partition import section_components
from znn.pipeline.pictures import draw_curves, draw_mistakes, draw_overlay
from znn.pipeline.report import SCORES, compile_report
from znn.pipeline.segmentation import segment

SEGMENTS_FILE, SEGMENTS = "segmentation.h5", "volumes/labels/neuron_ids"


def score(case, settings, progress=None):
    """Every score of a case.

    Parameters
    ----------
    case : pairing.Case
    settings : pairing.EvaluationSettings
    progress : callable, optional
        Called with no argument after every threshold of every family of scores.

    Returns
    -------
    dict of str to boundary_scores.Score
    """
    if case.kind == "segmentation":
        return score_segmentation(case.truth, case.prediction, drawn_boundary(case, None), settings.rand_convention)
    if case.kind == "mask":
        return score_mask(case.truth, case.prediction, settings.rand_convention, settings.seed_sizes_px)
    return score_map(case.truth, case.prediction, settings.rand_convention, settings.coarse_step, settings.fine_step,
                     settings.seed_sizes_px, progress)


def drawn_boundary(case, threshold):
    """Where a case's prediction draws boundary: a (Z, Y, X) bool array; only a map asks for the threshold."""
    if case.kind == "segmentation":
        return boundary_target(case.prediction, "ids") == BOUNDARY
    return case.prediction if case.kind == "mask" else case.prediction >= threshold


def evaluate(case, settings, overlay_sections=3, worst=4, progress=None):
    """Score a case and draw its pictures.

    Parameters
    ----------
    case : pairing.Case
    settings : pairing.EvaluationSettings
    overlay_sections : int
        How many sections are drawn; 0 for none.
    worst : int
        How many merges and splits are drawn; 0 for none.
    progress : callable, optional
        See `score`.

    Returns
    -------
    tuple of (dict, dict)
        The report (`report.compile_report`), and the pictures as {file name: (caption, PNG)}.
    """
    scores = score(case, settings, progress)
    report = compile_report(scores, case.about, settings.rand_convention, __version__)
    if case.threshold is not None:
        fixed = score_at(case.truth, case.prediction, case.threshold, settings.rand_convention, settings.seed_sizes_px)
        report["at_threshold"] = {"threshold": case.threshold} | _values(fixed, settings)
    pictures = {"curves.png": ("Scores over the threshold; the best of each is marked.", draw_curves(scores))}
    drawn = _Drawn(case, scores)
    if overlay_sections > 0:
        pictures["overlay.png"] = drawn.overlay(overlay_sections)
    report["mistakes"] = drawn.listed
    if worst > 0:
        pictures["mistakes.png"] = drawn.worst(worst)
    return report, {name: picture for name, picture in pictures.items() if picture[1] is not None}


def evaluate_segments(case, settings, folder):
    """Make a boundary map into segments, write them, and score them.

    Parameters
    ----------
    case : pairing.Case
        Of a boundary map, with a threshold unless the settings have one.
    settings : pairing.EvaluationSettings
        With a method of segmentation.
    folder : path
        Where segmentation.h5 goes: ids in `SEGMENTS`, as CREMI has them, on the voxels that are scored.

    Returns
    -------
    tuple of (dict, Path)
        For the report: settings, threshold, number of segments, and every score; and the file.
    """
    how, region, path = settings.segment, case.about["region"], Path(folder) / SEGMENTS_FILE
    threshold = case.threshold if how.threshold is None else how.threshold
    ids = segment(case.prediction, threshold, how)
    scores = score_segmentation(case.truth, ids, boundary_target(ids, "ids") == BOUNDARY, settings.rand_convention)
    about = {"method": how.method, "threshold": threshold}
    write_volume(path, {SEGMENTS: (ids.astype(np.dtype(how.ids)), about)}, region["resolution_zyx_nm"],
                 region["offset_zyx_nm"])
    return asdict(how) | {"threshold": threshold, "segments": int(ids.max())} | _values(scores, settings), path


def _values(scores, settings):
    """The plain values of the scores, by the names of the report."""
    report = compile_report(scores, {}, settings.rand_convention, __version__)
    return {name: report[name]["value"] for name in SCORES}


class _Drawn:
    """A prediction at the best threshold of V_rand, or of the pixel error, or at 0.5."""

    def __init__(self, case, scores):
        thresholds = (scores[name].threshold for name in ("v_rand", "pixel_error"))
        threshold = next((t for t in thresholds if t is not None), 0.5)
        self._at = "" if case.kind == "segmentation" else f" at threshold {threshold:g}"
        self._first = case.about["region"]["voxels_of_truth_zyx"][0]
        boundary = drawn_boundary(case, threshold)
        self._laid = case.raw, boundary, case.truth.boundary, case.truth.scored
        sections = section_components(case.prediction if case.kind == "segmentation" else ~boundary)
        self._mistakes = mistakes(case.truth.sections, sections)

    @property
    def listed(self):
        """The mistakes as plain values, in voxels of the truth."""
        shifts = dict(zip("zyx", self._first))
        return [asdict(m) | {axis: getattr(m, axis) + shift for axis, shift in shifts.items()} for m in self._mistakes]

    def overlay(self, sections):
        return (f"Boundaries of the prediction{self._at} against the truth.",
                draw_overlay(*self._laid, self._first[0], sections))

    def worst(self, count):
        """The costliest of each kind."""
        rows = [[m for m in self._mistakes if m.kind == kind][:count] for kind in KINDS]
        return (f"The costliest merges and splits of the prediction{self._at}.",
                draw_mistakes(*self._laid, self._first, rows))
