"""Scores and report of a prediction that has been paired with its truth."""
from data.targets import BOUNDARY, boundary_target
from znn import __version__
from znn.pipeline.boundary_scores import score_map, score_mask, score_segmentation
from znn.pipeline.pictures import draw_curves, draw_overlay
from znn.pipeline.report import compile_report


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


def evaluate(case, settings, overlay_sections=3, progress=None):
    """Score a case and draw its pictures.

    Parameters
    ----------
    case : pairing.Case
    settings : pairing.EvaluationSettings
    overlay_sections : int
        How many sections are drawn; 0 for none.
    progress : callable, optional
        See `score`.

    Returns
    -------
    tuple of (dict, dict)
        The report (`report.compile_report`), and the pictures as {file name: (caption, PNG)}.
    """
    scores = score(case, settings, progress)
    report = compile_report(scores, case.about, settings.rand_convention, __version__)
    pictures = {"curves.png": ("Scores over the threshold; the best of each is marked.", draw_curves(scores))}
    if overlay_sections > 0:
        pictures["overlay.png"] = _overlay(case, scores, overlay_sections)
    return report, {name: picture for name, picture in pictures.items() if picture[1] is not None}


def _overlay(case, scores, sections):
    """Boundaries at the best threshold of V_rand, or of the pixel error, or at 0.5."""
    thresholds = (scores[name].threshold for name in ("v_rand", "pixel_error"))
    threshold = next((t for t in thresholds if t is not None), 0.5)
    at = "" if case.kind == "segmentation" else f" at threshold {threshold:g}"
    picture = draw_overlay(case.raw, drawn_boundary(case, threshold), case.truth.boundary, case.truth.scored,
                           case.about["region"]["voxels_of_truth_zyx"][0][0], sections)
    return f"Boundaries of the prediction{at} against the truth.", picture
