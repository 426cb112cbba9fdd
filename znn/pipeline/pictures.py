"""Pictures of an evaluation as PNG bytes: scores over thresholds, and sections with the boundaries drawn over them."""
import io

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

CURVE_GROUPS = {
    "higher is better": ("v_rand", "v_info", "rand_f_components", "rand_f_watershed"),
    "lower is better": ("pixel_error", "adapted_rand_error"),
    "bits, lower is better": ("voi",),
}
# Apart for the colour-blind too: bluish green, vermilion, sky blue (Okabe and Ito).
COLOURS = {"found": (0, 158, 115), "missed": (213, 94, 0), "false": (86, 180, 233)}
OPACITY = 0.6
WINDOW = 160  # pixels of a side around a mistake


def draw_curves(scores):
    """Every score over the thresholds, its best marked.

    Parameters
    ----------
    scores : dict of str to boundary_scores.Score

    Returns
    -------
    bytes or None
        PNG; None when no score has more than one threshold.
    """
    groups = {title: [n for n in names if _drawable(scores[n])] for title, names in CURVE_GROUPS.items()}
    groups = {title: names for title, names in groups.items() if names}
    if not groups:
        return None
    figure = Figure(figsize=(5 * len(groups), 4), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True):
        for name in names:
            score = scores[name]
            thresholds, values = zip(*((t, v) for t, v in score.curve if v is not None), strict=True)
            (line,) = axes.plot(thresholds, values, marker=".", markersize=3, label=name)
            axes.plot(score.threshold, score.best.value, "o", color=line.get_color())
        axes.set(title=title, xlabel="threshold of the boundary probability", xlim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return _png(figure, 100)


def draw_overlay(raw, predicted, truth, scored, z_first, sections):
    """Sections with the boundaries coloured: found, missed, false.

    Parameters
    ----------
    raw : ndarray, shape (Z, Y, X), or None
        Background; grey when absent.
    predicted, truth, scored : ndarray of bool, shape (Z, Y, X)
        Boundary drawn and true, and where the truth is known.
    z_first : int
        What the first section is called.
    sections : int
        How many are shown, spread evenly from the first to the last.

    Returns
    -------
    bytes
        PNG.
    """
    depth = len(truth)
    shown = sorted(set(np.linspace(0, depth - 1, min(sections, depth)).round().astype(int).tolist()))
    figure = Figure(figsize=(6 * len(shown), 6.6), layout="constrained")
    for axes, z in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        grey = np.full(truth.shape[1:], 0.5) if raw is None else _stretched(raw[z])
        axes.imshow(colour_boundaries(grey, predicted[z], truth[z], scored[z]), interpolation="nearest")
        axes.set_title(f"section {z_first + z}")
        axes.set_axis_off()
    _legend(figure)
    return _png(figure, 90)


def draw_mistakes(raw, predicted, truth, scored, first, rows):
    """A piece of the section around each mistake, which is ringed, with the boundaries coloured.

    Parameters
    ----------
    raw, predicted, truth, scored
        As for `draw_overlay`.
    first : (z, y, x)
        What the first voxel is called.
    rows : list of list of mistakes.Mistake
        Of the picture; empty ones are left out.

    Returns
    -------
    bytes or None
        PNG; None when there are no mistakes.
    """
    rows = [row for row in rows if row]
    if not rows:
        return None
    columns = max(map(len, rows))
    figure = Figure(figsize=(3 * columns, 3.3 * len(rows) + 0.4), layout="constrained")
    for line, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, m in zip(line, row):
            y, x = (slice(at, at + WINDOW) for at in map(_start, (m.y, m.x), truth.shape[1:]))
            grey = np.full(truth.shape[1:], 0.5) if raw is None else _stretched(raw[m.z])
            axes.imshow(colour_boundaries(grey, predicted[m.z], truth[m.z], scored[m.z])[y, x], interpolation="nearest")
            axes.plot(m.x - x.start, m.y - y.start, "o", ms=22, mfc="none", mec="yellow", mew=1.5)
            z, y, x = (at + begin for at, begin in zip((m.z, m.y, m.x), first))
            axes.set_title(f"{m.kind}, section {z}, row {y}, column {x}", fontsize=7)
    _legend(figure)
    return _png(figure, 100)


def _start(at, extent):
    """Where a window of an axis begins that has a place in its middle, or at the end of the axis."""
    return max(0, min(at - WINDOW // 2, extent - WINDOW))


def colour_boundaries(grey, predicted, truth, scored):
    """A section with its boundaries in the colours of `COLOURS`, where the truth is known.

    Parameters
    ----------
    grey : ndarray, shape (Y, X)
        In [0, 1].
    predicted, truth, scored : ndarray of bool, shape (Y, X)

    Returns
    -------
    ndarray of uint8, shape (Y, X, 3)
    """
    rgb = np.repeat(grey[..., None] * 255, 3, axis=2)
    regions = {"found": predicted & truth, "missed": truth & ~predicted, "false": predicted & ~truth}
    for name, region in regions.items():
        where = region & scored
        rgb[where] = (1 - OPACITY) * rgb[where] + OPACITY * np.array(COLOURS[name])
    return rgb.astype(np.uint8)


def _drawable(score):
    return score.threshold is not None and len(score.curve) > 1


def _legend(figure):
    handles = [Patch(color=np.array(rgb) / 255, label=f"boundary {name}") for name, rgb in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _stretched(section):
    """Grey values in [0, 1] between the 1st and 99th percentile."""
    low, high = np.percentile(section, (1, 99))
    return np.clip((section - low) / max(high - low, 1e-9), 0, 1)


def _png(figure, dpi):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
