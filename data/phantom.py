"""Synthetic serial-section EM with its truth: deterministic, made in seconds, hard enough to learn on.

``python -m data.phantom out.h5 --shape 16 256 256 --seed 0`` writes one in the CREMI layout.
"""
import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from data.errors import DataError, WrongSetting
from data.organelles import (
    Reticulum,
    cytoplasm,
    find_synapses,
    mitochondria_ink,
    scatter_mitochondria,
    synapse_ink,
    vesicle_ink,
)
from data.roi import triple
from data.smooth import smooth_plane
from data.tissue import Tissue
from data.writing import write_volume

MEMBRANE_NM = 11.5          # half of what separates the insides of two processes: the truth
JITTER_NM = 7.0             # misplacement of a section
THICKNESS = (-0.38, 0.0, 0.38)  # planes, in sections, that are seen through one section: oblique membranes blur
BRIGHTNESS = 0.62


@dataclass(frozen=True)
class Phantom:
    """A synthetic stack and its truth, arrays (Z, Y, X).

    raw : uint8
    neuron_ids : uint32; 0 on membranes
    membrane : uint8; 1 on membranes
    resolution_zyx : nm
    """

    raw: np.ndarray
    neuron_ids: np.ndarray
    membrane: np.ndarray
    resolution_zyx: tuple


def phantom(shape, seed=0, resolution_zyx=(40.0, 4.0, 4.0)):
    """A stack of synthetic neuropil.

    Processes run on through the sections with gentle drift, swelling and branching, and share the space without
    gaps. Their membranes are dark and blur where they run obliquely. Mitochondria, vesicles, microtubules, reticulum
    and synaptic densities distract. Each section has its own contrast, brightness, uneven illumination, noise, and
    a small misplacement, which the truth shares.

    Parameters
    ----------
    shape : (z, y, x)
    seed : int
        The same seed gives the same stack.
    resolution_zyx : (z, y, x) in nm

    Returns
    -------
    Phantom
    """
    shape = triple(shape, "shape of the phantom")
    if min(shape) < 1:
        raise WrongSetting(f"shape of the phantom: expected at least 1 voxel along each axis, found {shape}")
    rng = np.random.default_rng([seed, 0])
    thickness, resolution = float(resolution_zyx[0]), tuple(float(r) for r in resolution_zyx[1:])
    tissue = Tissue(shape, resolution_zyx, rng)
    depth = (shape[0] + 1) * thickness
    mitochondria = scatter_mitochondria(rng, tissue.seeds, depth)
    tints = rng.standard_normal(tissue.seeds.process.max() + 1)
    reticulum = Reticulum(rng, shape[1:], resolution, depth)
    depths = (np.arange(shape[0]) + 0.5) * thickness
    shifts = rng.standard_normal((shape[0], 2)) * JITTER_NM
    sections = [[tissue.cut(d + t * thickness, s) for t in THICKNESS] for d, s in zip(depths, shifts)]
    middles = [planes[len(planes) // 2] for planes in sections]
    synapses = find_synapses(rng, middles, depths, resolution)
    raw = np.empty(shape, np.uint8)
    for z, (planes, middle, at) in enumerate(zip(sections, middles, depths)):
        own = np.random.default_rng([seed, 1, z])
        inside = np.maximum(mitochondria_ink(mitochondria, middle, at, tissue.seeds), reticulum.ink(middle, at))
        inside = np.maximum(inside, vesicle_ink(own, synapses, middle, at, resolution))
        picture = BRIGHTNESS + cytoplasm(own, middle, resolution, tints) - inside
        picture -= np.maximum(membrane_ink(planes), synapse_ink(synapses, middle, at, resolution))
        raw[z] = exposed(own, picture)
    membrane = np.stack([plane.distance < MEMBRANE_NM for plane in middles])
    ids = np.where(membrane, 0, np.stack([plane.process for plane in middles])).astype(np.uint32)
    return Phantom(raw, ids, membrane.astype(np.uint8), tuple(float(r) for r in resolution_zyx))


def membrane_ink(planes):
    """Darkness of membranes, averaged over the planes that are seen through one section."""
    layers = [np.clip((MEMBRANE_NM + 2.0 - plane.distance) / 8.0, 0, 1) for plane in planes]
    return 0.47 * np.mean(layers, axis=0).astype(np.float32)


def exposed(rng, picture):
    """One section as the microscope records it, uint8: focus, illumination, contrast, and two kinds of noise."""
    sharp = ndimage.gaussian_filter(picture, 0.8)
    light = 0.025 * smooth_plane(rng, picture.shape, 170.0)[0]
    grain = ndimage.gaussian_filter(rng.standard_normal(picture.shape, dtype=np.float32), 0.75) * 0.13
    shot = rng.standard_normal(picture.shape, dtype=np.float32) * 0.025
    level, contrast = BRIGHTNESS - 0.1, np.exp(rng.normal(0, 0.1))
    grey = level + rng.normal(0, 0.03) + contrast * (sharp + light - level) + grain + shot
    return (np.clip(grey, 0, 1) * 255).round().astype(np.uint8)


def write_phantom(path, shape, seed=0, resolution_zyx=(40.0, 4.0, 4.0), offset_zyx=(0.0, 0.0, 0.0)):
    """Write a phantom in the CREMI layout: volumes/raw, volumes/labels/neuron_ids and volumes/labels/membrane.

    Returns
    -------
    Phantom
    """
    made = phantom(shape, seed, resolution_zyx)
    write_volume(path, {"volumes/raw": (made.raw, {}), "volumes/labels/neuron_ids": (made.neuron_ids, {}),
                        "volumes/labels/membrane": (made.membrane, {})}, made.resolution_zyx, offset_zyx,
                 {"file_format": "0.2", "source": f"synthetic, seed {seed}"})
    return made


def main(arguments=None):
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m data.phantom",
                                     description="Write a synthetic EM stack and its truth.")
    parser.add_argument("output", help="HDF5 file to write")
    parser.add_argument("--shape", type=int, nargs=3, default=(16, 256, 256), metavar=("Z", "Y", "X"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resolution", type=float, nargs=3, default=(40.0, 4.0, 4.0),
                        metavar=("Z", "Y", "X"), help="size of a voxel in nm")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    options = parser.parse_args(arguments)
    if Path(options.output).exists() and not options.overwrite:
        print(f"error: {options.output}: exists already; choose another name, or say --overwrite", file=sys.stderr)
        return 1
    try:
        made = write_phantom(options.output, options.shape, options.seed, options.resolution)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {made.raw.shape} voxels, {len(np.unique(made.neuron_ids)) - 1} processes, "
          f"{made.membrane.mean():.0%} membrane")
    return 0


if __name__ == "__main__":
    sys.exit(main())
