"""One section of a boundary map beside its raw image and its truth, as a PNG.

``python -m znn.pipeline.picture stack.h5 boundary.h5 picture.png --section 4``
"""
import argparse
import sys
from pathlib import Path

import numpy as np

from data import DataError, Roi, Volume, as_float, boundary_target, common_roi
from znn.pipeline.curves import write_preview
from znn.pipeline.errors import PipelineError, UndefinedVolume


def section(volumes, z):
    """One section of several volumes, laid over each other by their offsets.

    Parameters
    ----------
    volumes : list of Volume
    z : int
        Section of the first volume, from 0.

    Returns
    -------
    list of ndarray, shape (Y, X)
        Of the extent that all cover.

    Raises
    ------
    UndefinedVolume
        If the first volume has no such section.
    data.errors.DataError
        If the volumes do not overlap there or differ in resolution.
    """
    first = volumes[0]
    if not 0 <= z < first.shape[0]:
        raise UndefinedVolume(f"section {z}: expected one of {first.name}, which has 0..{first.shape[0] - 1}")
    plane = first.crop(Roi((z, 0, 0), (1, *first.shape[1:])))
    for other in volumes[1:]:
        plane = plane.crop(common_roi(plane, other)[0])
    return [volume.read(common_roi(plane, volume)[1])[0] for volume in volumes]


def main(arguments=None):
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m znn.pipeline.picture", description=__doc__.splitlines()[0])
    parser.add_argument("stack", help="HDF5 file with raw sections and labels")
    parser.add_argument("boundary", help="HDF5 file that infer.py wrote for it")
    parser.add_argument("output", type=Path, help="PNG to write: raw, truth, boundary, side by side")
    parser.add_argument("--section", type=int, default=0)
    parser.add_argument("--raw", default="volumes/raw", metavar="DATASET")
    parser.add_argument("--labels", default="volumes/labels/membrane", metavar="DATASET")
    parser.add_argument("--kind", choices=("membrane", "ids"), default="membrane", help="what the labels are")
    parser.add_argument("--prediction", default="volumes/predictions/boundary", metavar="DATASET")
    options = parser.parse_args(arguments)
    try:
        volumes = [Volume.open(options.stack, options.raw), Volume.open(options.stack, options.labels),
                   Volume.open(options.boundary, options.prediction)]
        raw, labels, boundary = section(volumes, options.section)
        write_preview(options.output, raw, boundary_target(labels[np.newaxis], options.kind)[0], as_float(boundary))
    except (DataError, PipelineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output.absolute()}: raw | truth | boundary, section {options.section}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
