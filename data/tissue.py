"""The geometry of synthetic neuropil: processes that run through the sections, drift, swell and branch.

In every plane the processes share the space as a power diagram (each point belongs to the seed with the smallest
``|p - c|^2 - r^2``) of warped coordinates. Seeds move smoothly with depth; several seeds of one process make it
branch and not convex. The distance to the bisector of the two best processes is the distance to the membrane.
Lengths are nm throughout.
"""
from dataclasses import dataclass

import numpy as np

from data.smooth import Spline, SplinePlanes

PROFILE_NM = 130.0      # mean distance of neighbouring processes
MARGIN_NM = 400.0       # seeds are scattered beyond the picture too
LARGEST_RADIUS_NM = 200.0
WARPS_NM = ((420.0, 80.0), (120.0, 20.0), (50.0, 5.0))  # (feature size, displacement)
DEPTH_FEATURE_NM = 320.0
TILE = 64               # pixels; keeps the working set small for any size of picture
REACH_NM = 350.0        # no seed wins further away than its radius and this


@dataclass(frozen=True)
class Plane:
    """One plane through the tissue.

    process : (Y, X) int, the process each point belongs to
    distance : (Y, X), nm to the membrane
    coordinates : (2, Y, X), warped, in nm
    """

    process: np.ndarray
    distance: np.ndarray
    coordinates: np.ndarray


@dataclass(frozen=True)
class Seeds:
    """Seeds of all processes; `drift` and `swell` are spline controls over depth.

    start, slope, branch_way : (S, 2); drift : (S, 2, controls); swell : (S, controls)
    radius, branch_depth, branch_sign : (S,); process : (S,) int, from 1
    """

    start: np.ndarray
    slope: np.ndarray
    drift: np.ndarray
    swell: np.ndarray
    radius: np.ndarray
    branch_way: np.ndarray
    branch_depth: np.ndarray
    branch_sign: np.ndarray
    process: np.ndarray

    def at(self, depth):
        """Centres (S, 2) and radii (S,) at a depth."""
        spline = Spline([depth], DEPTH_FEATURE_NM)
        apart = np.clip((depth - self.branch_depth) * self.branch_sign, 0, 450.0)
        centre = (self.start + self.slope * depth + 28.0 * spline.along(self.drift, 2)[..., 0]
                  + self.branch_way * apart[:, None])
        return centre, self.radius * np.exp(0.18 * spline.along(self.swell, 1)[:, 0])


def scatter(rng, extent, depth):
    """Seeds for a picture of `extent` (y, x) and a stack of `depth`, in nm."""
    area = np.array(extent) + 2 * MARGIN_NM
    count = max(4, int(np.prod(area) / PROFILE_NM ** 2))
    controls = Spline([depth], DEPTH_FEATURE_NM).controls
    radius = np.minimum(rng.lognormal(np.log(56.0), 0.7, count), LARGEST_RADIUS_NM)
    oblique = np.where(rng.random((count, 1)) < 0.12, 0.28, 0.06)
    base = {"start": rng.random((count, 2)) * area - MARGIN_NM, "slope": rng.standard_normal((count, 2)) * oblique,
            "drift": rng.standard_normal((count, 2, controls)), "swell": rng.standard_normal((count, controls)),
            "radius": radius, "branch_way": np.zeros((count, 2)), "branch_depth": np.zeros(count),
            "branch_sign": np.ones(count), "process": np.arange(1, count + 1)}
    lobe = _copies(base, rng.random(count) < 0.45, 0.75)
    lobe["start"] = lobe["start"] + _directions(rng, len(lobe["radius"])) * (0.9 * lobe["radius"] + 40.0)[:, None]
    branch = _copies(base, rng.random(count) < 0.3, 0.85)
    number = len(branch["radius"])
    branch["branch_way"] = _directions(rng, number) * rng.uniform(0.5, 1.1, (number, 1))
    branch["branch_depth"] = rng.uniform(0, depth, number)
    branch["branch_sign"] = rng.choice([-1.0, 1.0], number)
    return Seeds(**{key: np.concatenate([base[key], lobe[key], branch[key]]) for key in base})


def _copies(seeds, chosen, shrink):
    copy = {key: value[chosen] for key, value in seeds.items()}
    return copy | {"radius": copy["radius"] * shrink}


def _directions(rng, count):
    angle = rng.uniform(0, 2 * np.pi, count)
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


class Tissue:
    """A block of neuropil that can be cut at any depth.

    Parameters
    ----------
    shape : (z, y, x)
    resolution_zyx : (z, y, x) in nm
    rng : numpy Generator
    """

    def __init__(self, shape, resolution_zyx, rng):
        self.shape, self.resolution = shape[1:], resolution_zyx[1:]
        extent = np.array(self.shape) * self.resolution
        depth = (shape[0] + 1) * resolution_zyx[0]
        self.seeds = scatter(rng, extent, depth)
        self.warps = []
        for feature, amount in WARPS_NM:
            planes = SplinePlanes(self.shape, self.resolution, feature)
            controls = planes.draw(rng, Spline([depth], DEPTH_FEATURE_NM).controls, 2)
            self.warps.append((planes, amount * controls))

    def cut(self, depth, shift=(0.0, 0.0)):
        """The plane at `depth` (nm, at least 0), its content moved by `shift` (y, x; nm)."""
        axes = [np.arange(n) * r + s for n, r, s in zip(self.shape, self.resolution, shift)]
        coordinates = np.stack(np.meshgrid(*axes, indexing="ij")) + self._warp(depth)
        centre, radius = self.seeds.at(depth)
        process, distance = np.zeros(self.shape, np.int64), np.zeros(self.shape, np.float32)
        for y in range(0, self.shape[0], TILE):
            for x in range(0, self.shape[1], TILE):
                tile = (slice(y, y + TILE), slice(x, x + TILE))
                process[tile], distance[tile] = _share(coordinates[:, *tile], centre, radius, self.seeds.process)
        return Plane(process, distance, coordinates)

    def _warp(self, depth):
        spline = Spline([depth], DEPTH_FEATURE_NM)
        return sum(planes.values(spline.along(controls, 0)[0]) for planes, controls in self.warps)


def _share(coordinates, centre, radius, process):
    """Which process each point belongs to, and how far its membrane is, for one tile."""
    middle = coordinates.mean(axis=(1, 2))
    span = np.linalg.norm(coordinates - middle[:, None, None], axis=0).max()
    away = np.linalg.norm(centre - middle, axis=1) - radius
    near = (away < span + REACH_NM) | (away <= np.sort(away)[3])
    centre, radius, process = (centre[near] - middle).astype(np.float32), radius[near], process[near]
    points = (coordinates - middle[:, None, None]).reshape(2, -1).astype(np.float32)
    score = (np.square(centre).sum(1) - radius ** 2).astype(np.float32) \
        - points[0][:, None] * (2 * centre[:, 0]) - points[1][:, None] * (2 * centre[:, 1])
    row = np.arange(len(score))
    first = score.argmin(1)
    best = score[row, first]
    np.copyto(score, np.inf, where=process[first][:, None] == process)
    second = score.argmin(1)
    between = np.linalg.norm(centre[first] - centre[second], axis=1)
    distance = (score[row, second] - best) / (2 * np.maximum(between, 20.0))
    return (a.reshape(coordinates.shape[1:]) for a in (process[first], distance))
