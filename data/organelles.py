"""What darkens the inside of processes and is no membrane: mitochondria, vesicles, reticulum, synapses.

Every function returns ink: an array (Y, X) that is subtracted from the brightness. Lengths are nm.
"""
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from data.smooth import Spline, SplinePlanes, smooth_plane

VESICLE_NM = 19.0       # radius
TEXTURE_DEPTH_NM = 60.0
RETICULUM_NM = 90.0
PSD_RADIUS_NM = 110.0


@dataclass(frozen=True)
class Mitochondrion:
    """A tube that follows seed `seed` of the tissue around depth `depth`; `half` = half its (z, long, short) axes."""

    seed: int
    depth: float
    offset: np.ndarray
    half: tuple
    angle: float


def scatter_mitochondria(rng, seeds, depth):
    """Mitochondria for the processes that are wide enough."""
    found = []
    for index in np.flatnonzero(seeds.radius > 75.0):
        for _ in range(rng.poisson(depth / 1100.0 + 0.25)):
            wide = seeds.radius[index]
            short = float(np.clip(rng.normal(0.45 * wide, 15.0), 40.0, 105.0))
            half = (rng.uniform(150.0, 450.0), short * rng.uniform(1.0, 1.9), short)
            found.append(Mitochondrion(int(index), rng.uniform(0, depth), rng.standard_normal(2) * 0.25 * wide, half,
                                       rng.uniform(0, np.pi)))
    return found


def mitochondria_ink(mitochondria, plane, depth, seeds):
    """A dark outline, a grey matrix, and cristae, where the tube crosses the plane within its process."""
    ink = np.zeros(plane.distance.shape, np.float32)
    centre, _ = seeds.at(depth)
    for one in mitochondria:
        rise = 1 - ((depth - one.depth) / one.half[0]) ** 2
        if rise <= 0.02:
            continue
        window, (y, x) = _close(plane.coordinates, centre[one.seed] + one.offset, one.half[1] + 20.0)
        u, v = y * np.cos(one.angle) + x * np.sin(one.angle), x * np.cos(one.angle) - y * np.sin(one.angle)
        size = np.sqrt(rise)
        inside = one.half[2] * size * (1 - np.hypot(u / (one.half[1] * size), v / (one.half[2] * size)))
        inside = np.minimum(inside, plane.distance[window] - 22.0)
        inside[plane.process[window] != seeds.process[one.seed]] = -1e3
        wall = np.exp(-np.square((inside - 5.0) / 6.0))
        cristae = np.square(np.sin(u * (np.pi / 26.0) + 1.5 * np.sin(v / 24.0))) * (inside > 12.0)
        own = np.where(inside > -8, 0.36 * wall + 0.17 * (inside > 0) + 0.14 * cristae, 0)
        ink[window] = np.maximum(ink[window], own)
    return ink


def _close(coordinates, centre, reach):
    """Slices of the window that holds every point within `reach` of `centre`, and coordinates relative to it there."""
    relative = coordinates - centre[:, None, None]
    near = (np.abs(relative) < reach).all(0)
    rows, columns = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
    window = tuple(slice(i[0], i[-1] + 1) if len(i) else slice(0, 0) for i in (rows, columns))
    return window, relative[:, *window]


@dataclass(frozen=True)
class Synapse:
    """A density on a membrane: where (depth, y, x in nm of the picture) and the two processes, sender first."""

    depth: float
    place: tuple
    sender: int
    receiver: int


def find_synapses(rng, planes, depths, resolution, spacing=420.0):
    """Places on membranes, about one for each ``spacing ** 2`` of a picture in every 280 nm of depth."""
    found = []
    for plane, depth in list(zip(planes, depths))[::7]:
        spots = np.argwhere(plane.distance < 4.0)
        height, width = plane.distance.shape
        area = height * width * resolution[0] * resolution[1]
        for y, x in rng.permutation(spots)[:rng.poisson(area / spacing ** 2)]:
            around = plane.process[max(0, y - 4):y + 5, max(0, x - 4):x + 5]
            ids, counts = np.unique(around, return_counts=True)
            if len(ids) > 1:
                pair = rng.permutation(ids[np.argsort(counts)[-2:]])
                found.append(Synapse(depth, (y * resolution[0], x * resolution[1]), int(pair[0]), int(pair[1])))
    return found


def synapse_ink(synapses, plane, depth, resolution):
    """The density: thick and dark on the receiver's side of the membrane."""
    ink = np.zeros(plane.distance.shape, np.float32)
    for one in synapses:
        reach = PSD_RADIUS_NM ** 2 - (1.2 * (depth - one.depth)) ** 2
        if reach > 0:
            window, away = _around(one.place, np.sqrt(reach), plane.distance.shape, resolution)
            side = plane.process[window] == one.receiver
            fade = np.clip(2.5 * (1 - away / reach), 0, 1)
            ink[window] += 0.42 * fade * np.exp(-np.square((plane.distance[window] - 10) / np.where(side, 22.0, 8.0)))
    return np.minimum(ink, 0.5)


def vesicle_ink(rng, synapses, plane, depth, resolution):
    """Rings: crowds on the senders' side of synapses, a few anywhere; and the dots of microtubules."""
    density = np.full(plane.distance.shape, 1 / 24000.0, np.float32)
    for one in synapses:
        reach = (2.3 * PSD_RADIUS_NM) ** 2 - (depth - one.depth) ** 2
        if reach > 0:
            window, away = _around(one.place, np.sqrt(reach), plane.distance.shape, resolution)
            density[window] += (away < reach) * (plane.process[window] == one.sender) / 4200.0
    density *= (plane.distance > 27.0) * np.float32(resolution[0] * resolution[1])
    spots = (rng.random(density.shape) < density).astype(np.float32)
    dots = (rng.random(density.shape) < 0.8 * resolution[0] * resolution[1] / 9000.0 * (plane.distance > 20.0))
    sigma = [VESICLE_NM / r for r in resolution]
    ring = 0.95 * _blurred(spots, sigma, 0.50) - 0.8 * _blurred(spots, sigma, 0.35)
    return np.clip(ring, -0.15, 0.3) + np.minimum(0.22 * _blurred(dots.astype(np.float32), sigma, 0.33), 0.3)


def _blurred(spots, sigma, factor):
    """Gaussian blobs of unit height."""
    sigma = [s * factor for s in sigma]
    return ndimage.gaussian_filter(spots, sigma) * np.float32(2 * np.pi * sigma[0] * sigma[1])


def _around(place, radius, shape, resolution):
    """Slices of the window around a place and the squared distances (nm^2) in it."""
    bounds = [(max(0, int((p - radius) / r)), max(0, min(n, int((p + radius) / r) + 2)))
              for p, r, n in zip(place, resolution, shape)]
    y, x = (np.arange(*b) * r - p for b, r, p in zip(bounds, resolution, place))
    return tuple(slice(*b) for b in bounds), np.square(y)[:, None] + np.square(x)[None]


class Reticulum:
    """Thin dark sheets inside of wide processes: level sets of a smooth random field that changes with depth."""

    def __init__(self, rng, shape, resolution, depth):
        self.planes = SplinePlanes(shape, resolution, RETICULUM_NM)
        self.controls = self.planes.draw(rng, Spline([depth], TEXTURE_DEPTH_NM).controls, 2)

    def ink(self, plane, depth):
        """The ink of one plane."""
        field, where = self.planes.values(Spline([depth], TEXTURE_DEPTH_NM).along(self.controls, 0)[0])
        sheet = np.exp(-np.square(field / 0.09)) * np.clip(3 * (where - 0.9), 0, 1)
        return (0.24 * sheet * (plane.distance > 24.0)).astype(np.float32)


def cytoplasm(rng, plane, resolution, tints):
    """Uneven grey of the inside: granular, and a little different in each process (`tints`, by number)."""
    fine, coarse = (smooth_plane(rng, plane.distance.shape, feature / resolution[0])[0] for feature in (9.0, 26.0))
    return (0.025 * tints[plane.process] + 0.035 * fine + 0.03 * coarse).astype(np.float32)
