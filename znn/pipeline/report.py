"""What an evaluation leaves behind: a table for the terminal, report.json, report.html and its pictures."""
import json
import os
from pathlib import Path

from data.files import replacing
from znn.pipeline.errors import OutputExists, OutputNotWritable
from znn.pipeline.metrics import CONVENTIONS
from znn.pipeline.report_page import format_html

FORMAT = "znn-scores-1"
ISBI = "ISBI 2012: sections, 4-connected, thinned by watershed lines, truth 0 excluded"
RAND_2D = "all sections at once, 4-connected, cremi"
VOI = "CREMI: truth 0 excluded, predicted 0 one segment more, at the least split + merge"
NO_FOREGROUND = "no section has a labelled voxel outside membrane"
NO_IDS = "no voxel carries a neuron's id that holds through the volume; name such a dataset by ids_dataset="

# name: (better, unit, convention, why it can be undefined); {rand} is the convention chosen for the volume.
SCORES = {
    "v_rand": ("high", "", ISBI, NO_FOREGROUND),
    "v_info": ("high", "", ISBI, "no section has two true segments"),
    "rand_f_components": ("high", "", f"2D Rand F of components: {RAND_2D}", NO_FOREGROUND),
    "rand_f_watershed": ("high", "", f"2D Rand F after flooding: {RAND_2D}", NO_FOREGROUND),
    "pixel_error": ("low", "", "fraction of the scored voxels called wrongly", "no voxel is scored"),
    "adapted_rand_error": ("low", "", "SNEMI3D, volume, {rand}", NO_IDS),
    "voi_split": ("low", "bit", VOI, NO_IDS),
    "voi_merge": ("low", "bit", VOI, NO_IDS),
    "cremi_score": ("low", "", "CREMI: sqrt((split + merge) * adapted Rand error), {rand_name}", NO_IDS),
}


def compile_report(scores, about, rand_convention, version):
    """Everything in plain values that JSON can hold.

    Parameters
    ----------
    scores : dict of str to boundary_scores.Score
    about : dict
        Where the data came from.
    rand_convention : str
    version : str

    Returns
    -------
    dict
        "format", "version", `about`'s entries, an entry for each name in `SCORES` with "value" (None: undefined),
        "threshold", "convention", "better", "unit", "n_defined", "n_total" and more where there is more, and "curves".
    """
    entries = {name: _entry(name, scores, rand_convention) for name in SCORES}
    curves = {name: [list(point) for point in score.curve] for name, score in scores.items() if score.curve}
    return {"format": FORMAT, "version": version, **about, **entries, "curves": curves}


def _entry(name, scores, rand):
    part = {"voi_split": "split", "voi_merge": "merge"}.get(name)
    score = scores["voi" if part else name]
    value = score.best.details.get(part) if part else score.best.value
    each = score.best.sections if score.best.sections is not None else [value]
    better, unit, convention, reason = SCORES[name]
    entry = {
        "value": value,
        "threshold": score.threshold,
        "convention": convention.format(rand=f"{rand}: {CONVENTIONS[rand]}", rand_name=rand),
        "better": better,
        "unit": unit,
        "n_defined": sum(v is not None for v in each),
        "n_total": len(each),
    }
    if value is None:
        entry["undefined"] = reason
    if score.best.sections is not None:
        entry["sections"] = score.best.sections
    if not part and score.best.details and name != "voi":
        entry["details"] = score.best.details
    return entry


def table_rows(report):
    """(score, value, threshold, defined, convention) of every score as text, "undefined" and why included."""
    rows = []
    for name in SCORES:
        entry = report[name]
        value = "undefined" if entry["value"] is None else f"{entry['value']:.5f} {entry['unit']}".strip()
        threshold = "-" if entry["threshold"] is None else f"{entry['threshold']:g}"
        defined = f"{entry['n_defined']}/{entry['n_total']}"
        note = entry["convention"] if entry["value"] is not None else entry["undefined"]
        rows.append((name, value, threshold, defined, note))
    return rows


def format_table(report):
    """The scores as a table for the terminal."""
    rows = [("score", "value", "threshold", "defined", "convention"), *table_rows(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]] for row in rows)
    return "\n".join("  ".join(line) for line in lines)


def format_values(title, values):
    """Scores that belong to one threshold or segmentation, in a line; those that are undefined are left out."""
    defined = ", ".join(f"{name} {values[name]:.4f}" for name in SCORES if values[name] is not None)
    return f"{title}: {defined}"


def format_compared(report):
    """What was compared with what, in a line."""
    sources = report["prediction"], report["truth"]
    prediction, truth = (f"{s['file']}:{s['dataset']} as {s['taken_as']}" for s in sources)
    begin, end = report["region"]["voxels_of_truth_zyx"]
    return f"{prediction} with {truth}, voxels {tuple(begin)} to {tuple(end)} (z, y, x) of the truth"


def check_output(folder, overwrite):
    """Make sure that a report may be written, before the work is done.

    Raises
    ------
    OutputExists
        If there is one already and `overwrite` is not set.
    OutputNotWritable
        If the folder cannot be made or written to.
    """
    folder = Path(folder)
    if (folder / "report.json").exists() and not overwrite:
        raise OutputExists(f"{folder / 'report.json'}: exists already; choose another output=, or say overwrite=true")
    if folder.exists() and not folder.is_dir():
        raise OutputNotWritable(f"{folder}: expected a folder or nothing there, found a file; choose another output=")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise OutputNotWritable(f"{folder}: the folder of the report cannot be made ({error.strerror})") from error
    if not usable:
        raise OutputNotWritable(f"{folder}: no permission to write the report there; choose another output=")


def write_report(folder, report, pictures):
    """Write report.json, report.html and the pictures, each under a temporary name first; report.json comes last.

    Parameters
    ----------
    folder : path
        Exists, see `check_output`.
    report : dict
    pictures : dict of str to (str, bytes)
        File name to caption and PNG.

    Returns
    -------
    list of Path
    """
    about = {k: v for k, v in report.items() if k not in SCORES and k not in ("curves", "mistakes")}
    page = format_html(table_rows(report), about, dict(pictures.values()))
    files = {name: png for name, (_, png) in pictures.items()}
    files["report.html"] = page.encode()
    files["report.json"] = (json.dumps(report, indent=2, allow_nan=False) + "\n").encode()
    return [_write(Path(folder) / name, content) for name, content in files.items()]


def _write(path, content):
    try:
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise OutputNotWritable(f"{path}: could not be written ({error.strerror}); nothing was left behind") from error
    return path
