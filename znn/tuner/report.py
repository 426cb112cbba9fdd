"""What tuning came to: a table to read, the same as CSV and JSON, and a picture of the best so far over time."""
import csv
import json
import math
from dataclasses import asdict, fields
from pathlib import Path

from matplotlib.figure import Figure

from znn.runtime.files import replacing
from znn.tuner.errors import TuningError
from znn.tuner.tuning import Outcome

JSON, CSV, PICTURE = "tuning.json", "tuning.csv", "progress.png"
COLOURS = {"forward": "tab:blue", "data": "tab:orange", "weights": "tab:green"}
HEADS = ("kernel", "ms before", "after", "gain", "peak before", "after", "tried", "seconds", "by")


def table(outcomes):
    """The outcomes as text, a kernel a line, and all of them together; times are milliseconds of the passes."""
    rows = [HEADS, *map(_row, outcomes)]
    before, after = together(outcomes)
    if before:
        rows.append(("together", _ms(before), _ms(after), f"{before / after:.2f}x", "", "",
                     str(sum(o.measurements for o in outcomes)), f"{sum(o.spent for o in outcomes):.0f}", ""))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(w) if i in (0, len(row) - 1) else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def together(outcomes):
    """Seconds of the network's passes in the kernels that were measured, (before, after)."""
    measured = [o for o in outcomes if o.step_before is not None]
    return sum(o.step_before for o in measured), sum(o.step_after for o in measured)


def earlier(folder, about):
    """Outcomes by contraction that a report of the same network in the same circumstances holds; {} where none is."""
    try:
        content = json.loads((Path(folder) / JSON).read_text(encoding="utf-8"))
        if content["about"] != about:
            return {}
        known = {field.name for field in fields(Outcome)}
        return {o["contraction"]: Outcome(**{k: v for k, v in o.items() if k in known}) for o in content["kernels"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # none, or another's: it is replaced


def write(folder, outcomes, about):
    """Write the report; list of Path.

    Parameters
    ----------
    folder : path-like
        Made unless it is there.
    outcomes : list of Outcome
    about : dict
        Network and circumstances, JSON values; ``about["title"]`` stands over the picture.

    Raises
    ------
    TuningError
        If it cannot be written.
    """
    folder, (before, after) = Path(folder), together(outcomes)
    columns = [field.name for field in fields(Outcome) if field.name != "curve"]
    content = {"about": about, "kernels": [asdict(o) for o in outcomes],
               "together": {"before": before or None, "after": after or None}}
    written = [folder / JSON, folder / CSV]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(written[0]) as path:
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        with replacing(written[1]) as path, path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, columns, extrasaction="ignore")
            lines.writeheader()
            lines.writerows(map(asdict, outcomes))
        if any(o.curve for o in outcomes):
            written.append(folder / PICTURE)
            with replacing(written[2]) as path:
                picture(outcomes, about["title"]).savefig(path, dpi=110, format="png")
    except OSError as error:
        raise TuningError(f"{folder}: cannot write the report there ({error.strerror or error}); what was found is "
                          "stored all the same; choose another place with report=<folder>, or none with "
                          "report=null") from error
    return written


def picture(outcomes, title):
    """Speed of the best schedule so far, in the default's, over the seconds spent on a kernel; a Figure."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes, searched = figure.subplots(), [o for o in outcomes if o.curve]
    longest = max(o.spent for o in searched)
    first = min(o.curve[0][0] for o in searched)
    for which, colour in COLOURS.items():
        for number, o in enumerate(o for o in searched if o.which == which):
            at, ratios = zip(*o.curve, (longest, o.curve[-1][1]))
            axes.step(at, [1 / r for r in ratios], where="post", color=colour, linewidth=0.8, alpha=0.5,
                      label=None if number else which)
    times = sorted({at for o in searched for at, _ in o.curve} | {longest})
    total = sum(o.step_before for o in searched)
    gains = [total / sum(o.step_before * _at(o.curve, t) for o in searched) for t in times]
    axes.step(times, gains, where="post", color="black", linewidth=2, label="all together, by their time")
    axes.set(xscale="log", xlim=(first, longest), xlabel="seconds of searching for a kernel",
             ylabel="speed of the best so far, in the default's", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left")
    return figure


def _at(curve, seconds):
    """Best time so far, in the default's."""
    return next((ratio for at, ratio in reversed(curve) if at <= seconds), 1.0)


def _row(o):
    if o.before is None:
        change = "as it was" if o.schedule == o.default else "changed"
        return o.name, "", "", "", "", "", change, f"{o.spent:.1f}", o.source
    return (o.name, _ms(o.step_before), _ms(o.step_after), f"{o.before / o.after:.2f}x", f"{o.share_before:.2f}",
            f"{o.share_after:.2f}", str(o.measurements), f"{o.spent:.1f}", o.source)


def _ms(seconds):
    """Milliseconds with three digits that count."""
    value = 1e3 * seconds
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
