"""What a training shows while it runs: the learning curve as CSV and picture, previews, events for TensorBoard."""
import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

from data.files import replacing
from znn.pipeline.errors import OutputNotWritable, PipelineError
from znn.pipeline.selection import PARTITIONS

COLUMNS = ("stage", "step", "minutes", "learning_rate", "loss", "pixel_error", "voxels_per_s",
           "select_loss", "select_pixel_error", "select_v_rand", "select_v_info")
PREVIEW_SIDE = 256
GAP = 4


class LearningCurve:
    """The learning curve of a run: rows of `COLUMNS`, a dict each; a score that was not taken is absent.

    Parameters
    ----------
    folder : str or Path
        Of curve.csv and curve.png.
    """

    def __init__(self, folder):
        self.folder, self.rows = Path(folder), []

    @classmethod
    def read(cls, folder, stage, step, before=()):
        """The curve in a folder up to a step of a stage, in a run whose finished stages are `before`."""
        curve = cls(folder)
        path = curve.folder / "curve.csv"
        if path.is_file():
            with open(path, newline="") as file:
                rows = [{k: _number(v) for k, v in row.items() if v != ""} for row in csv.DictReader(file)]
            curve.rows = [r for r in rows if r["stage"] in before or (r["stage"] == stage and r["step"] <= step)]
        return curve

    def add(self, stage, values):
        """Append a row, or add to the last one when it is of the same step."""
        row = {"stage": stage} | values
        if self.rows and all(self.rows[-1][key] == row[key] for key in ("stage", "step")):
            self.rows[-1] |= row
        else:
            self.rows.append(row)

    def write(self):
        """Write curve.csv, under a temporary name first."""
        def table(path):
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(self.rows)

        written(self.folder / "curve.csv", table)

    def draw(self):
        """Draw curve.png."""
        written(self.folder / "curve.png", lambda path: self._figure().savefig(path, dpi=100, format="png"))

    def _figure(self):
        scores = ["loss", "pixel_error"] + [s for s in PARTITIONS if any(f"select_{s}" in r for r in self.rows)]
        figure = Figure(figsize=(4.5 * len(scores), 4), layout="constrained")
        for axes, score in zip(figure.subplots(1, len(scores)), scores):
            for stage in dict.fromkeys(row["stage"] for row in self.rows):
                (line,) = axes.plot(*self._series(stage, score), alpha=0.6, label=f"{stage}, training")
                held_out = self._series(stage, f"select_{score}")
                if held_out[0]:
                    axes.plot(*held_out, "o-", markersize=3, color=line.get_color(), label=f"{stage}, held out")
            axes.set(xlabel="step of the stage", ylabel=score.replace("_", " "),
                     ylim=(None, 1) if score in PARTITIONS else (0, None))
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
        return figure

    def _series(self, stage, column):
        points = [(r["step"], r[column]) for r in self.rows if r["stage"] == stage and r.get(column) is not None]
        return [p[0] for p in points], [p[1] for p in points]


def _number(text):
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def written(path, write):
    """Call ``write(temporary path)`` and rename what it wrote to `path`; an error when that is not possible."""
    try:
        with replacing(path) as partial:
            write(partial)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot write ({error.strerror or error}); check that the folder may be "
                                "written to and has space") from error


def write_preview(path, raw, target, probability):
    """One section as a PNG: raw, target, prediction, side by side.

    Parameters
    ----------
    path : Path
    raw : (Y, X) array
        Any grey values; stretched from their 1st to their 99th percentile.
    target : (Y, X) uint8
        0 interior, 1 boundary; anything else is grey.
    probability : (Y, X) float array
        In [0, 1].
    """
    low, high = np.percentile(raw, (1, 99))
    grey = np.clip((raw - low) / (high - low if high > low else 1), 0, 1)
    truth = np.where(target > 1, 0.5, target)
    gap = np.ones((raw.shape[0], GAP))
    picture = np.concatenate([grey, gap, truth, gap, probability], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    written(path, lambda partial: imsave(partial, picture, cmap="gray", vmin=0, vmax=1, format="png"))


def tensorboard_writer():
    """The class that writes TensorBoard events into a folder.

    Raises
    ------
    PipelineError
        If TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise PipelineError("tensorboard=true: TensorBoard is not installed; pip install 'znn[log]', "
                            "or leave it out: the curve is in curve.csv and curve.png too") from error
    return SummaryWriter
