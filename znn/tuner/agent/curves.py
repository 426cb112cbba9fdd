"""Learning curves that training wrote, in one picture.

    python -m znn.tuner.agent.curves docs/policy_curves.png ppo=docs/measured/policy_curve.csv dqn=...
"""
import argparse
import csv
import io
from pathlib import Path

from znn.runtime.files import replacing


def read(path):
    """Steps and mean gains of a curve that ``train --curve`` wrote; two lists.

    Raises
    ------
    ValueError
        If the file is none.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8"))))
        return [int(row["steps"]) for row in rows], [float(row["gain"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected columns steps and gain, as train --curve writes ({error!r})") from error


def draw(curves, path):
    """Write a picture of curves, {name: (steps, gains)}."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, (steps, gains) in curves.items():
        axes.plot(steps, [100 * gain for gain in gains], label=name)
    axes.set(xlabel="actions", ylabel="% of the peak", title="What an episode's best gains, by the judges")
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as written:
        figure.savefig(written, format="png", dpi=120)


def main(arguments=None):
    """Draw, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", help="PNG file to write")
    parser.add_argument("curves", nargs="+", metavar="NAME=CSV")
    chosen = parser.parse_args(arguments)
    draw({name: read(path) for name, _, path in (curve.partition("=") for curve in chosen.curves)}, chosen.picture)


if __name__ == "__main__":
    main()
