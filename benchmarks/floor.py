"""What no training reaches: membranes are dark, so smooth the raw sections and threshold them.

    python benchmarks/floor.py ../shared/em/isbi2012_train.h5 --write floor.h5

prints V_rand and V_info for several widths of the Gaussian, the width chosen on sections 20-24 and judged on sections
25-29, and writes the map of the chosen width, which evaluate.py scores like any other:

    python evaluate.py prediction=floor.h5 truth=../shared/em/isbi2012_train.h5 z_range=[25,30] output=scores/floor
"""
import argparse

import numpy as np
from scipy.ndimage import gaussian_filter

from data.volume import Volume
from data.writing import write_volume
from znn.pipeline import partition
from znn.pipeline.boundary_scores import BETTER, Truth, score_thinned
from znn.pipeline.sweep import best_threshold, sweep

SELECT, TEST = slice(20, 25), slice(25, 30)
NAMES = "v_rand", "v_info"


def darkness(raw, sigma_px):
    """Boundary map of smoothed raw: the fraction of the section's pixels that are brighter, in [0, 1).

    Parameters
    ----------
    raw : ndarray, shape (Z, Y, X)
    sigma_px : float
        Of the Gaussian, within the section; 0 does not smooth.

    Returns
    -------
    ndarray of float32, shape (Z, Y, X)
    """
    smooth = gaussian_filter(raw.astype(np.float32), (0, sigma_px, sigma_px))
    sections = (np.searchsorted(np.sort(s, axis=None), s, side="right") / s.size for s in smooth)
    return np.stack([1 - below for below in sections]).astype(np.float32)


def thinned_scores(probability, membrane):
    """Best V_rand and V_info over the thresholds, and the threshold of the best V_rand."""
    truth = Truth(partition.section_components(~membrane), membrane, np.ones_like(membrane))
    scores = sweep(
        lambda t: score_thinned(truth, partition.section_components(probability < t)), {n: BETTER[n] for n in NAMES}
    )
    at = {name: best_threshold(scores, name, BETTER[name]) for name in NAMES}
    return scores[at["v_rand"]]["v_rand"].value, scores[at["v_info"]]["v_info"].value, at["v_rand"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack", help="isbi2012_train.h5: volumes/raw and volumes/labels/membrane, 30 sections")
    parser.add_argument("--sigmas-px", type=float, nargs="+", default=[1, 2, 2.5, 3])
    parser.add_argument("--write", metavar="FILE", help="write the map of the chosen width here")
    arguments = parser.parse_args()
    raw = Volume.open(arguments.stack)
    membrane = Volume.open(arguments.stack, "volumes/labels/membrane").read() > 0
    print("sigma px   select V_rand  V_info    test V_rand  V_info  threshold")
    chosen = {}
    for sigma in arguments.sigmas_px:
        probability = darkness(raw.read(), sigma)
        select, test = (thinned_scores(probability[z], membrane[z]) for z in (SELECT, TEST))
        chosen[select[0]] = sigma
        columns = f"{select[0]:13.4f}  {select[1]:.4f}  {test[0]:13.4f}  {test[1]:.4f}  {test[2]:9.2f}"
        print(f"{sigma:8g}   {columns}", flush=True)
    sigma = chosen[max(chosen)]
    print(f"chosen on sections {SELECT.start}-{SELECT.stop - 1}: sigma {sigma:g} px")
    if arguments.write:
        attributes = {"smoothing_sigma_px": sigma, "note": "rank of the smoothed darkness within the section"}
        boundary = {"volumes/predictions/boundary": (darkness(raw.read(), sigma), attributes)}
        write_volume(arguments.write, boundary, raw.resolution_zyx, raw.offset_zyx)
        print(f"written: {arguments.write}:volumes/predictions/boundary")


if __name__ == "__main__":
    main()
