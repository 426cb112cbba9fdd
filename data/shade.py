"""Augmentation that changes grey values section by section; labels stay as they are.

Works on standardised values, where 0 is the mean of a section and 1 its standard deviation: a missing section is 0,
just what standardisation makes of a blank one.
"""
import numpy as np
from scipy import ndimage

BLUR_LEAST_PX = 0.5


def shaded(image, augmentation, rngs):
    """`image` with contrast, gamma, blur and missing sections as drawn.

    Parameters
    ----------
    image : (C, Z, Y, X) float32 array
        The first channel is standardised grey values. A boundary map in the second is left alone, except that it
        knows nothing (0, halfway) about a missing section.
    augmentation : Augmentation
    rngs : dict of numpy Generators "contrast", "gamma", "blur" and "missing"

    Returns
    -------
    (C, Z, Y, X) float32 array, a copy
    """
    image = image.copy()
    grey = image[0]
    if rngs["contrast"].random() < augmentation.contrast_p:
        contrast(grey, augmentation.contrast_scale, augmentation.contrast_shift, rngs["contrast"])
    if rngs["gamma"].random() < augmentation.gamma_p:
        gamma(grey, augmentation.gamma_log2, rngs["gamma"])
    if rngs["blur"].random() < augmentation.blur_p:
        blur(grey, augmentation.blur_max_sections, augmentation.blur_max_sigma_px, rngs["blur"])
    if rngs["missing"].random() < augmentation.missing_p and len(grey) > 1:
        image[:, some_sections(len(grey) - 1, len(grey), augmentation.missing_max_sections, rngs["missing"])] = 0.0
    return image


def contrast(grey, scale, shift, rng):
    """In place: each section times 1 +- `scale` plus +- `shift`, both drawn uniformly."""
    factors, offsets = rng.uniform(-1, 1, (2, len(grey), 1, 1)).astype(np.float32)
    grey *= 1 + scale * factors
    grey += shift * offsets


def gamma(grey, log2, rng):
    """In place: each section to the power 2 ** (+- `log2`), drawn uniformly, within its own range of values."""
    for section, power in zip(grey, 2.0 ** rng.uniform(-log2, log2, len(grey))):
        low, span = section.min(), np.ptp(section)
        if span > 0:
            section[:] = low + span * ((section - low) / span) ** power


def blur(grey, max_sections, max_sigma, rng):
    """In place: 1..`max_sections` sections out of focus, Gaussian with sigma up to `max_sigma` pixels."""
    for z in some_sections(len(grey), len(grey), max_sections, rng):
        grey[z] = ndimage.gaussian_filter(grey[z], rng.uniform(BLUR_LEAST_PX, max(BLUR_LEAST_PX, max_sigma)))


def some_sections(most, sections, wanted, rng):
    """Between 1 and `wanted` different sections out of `sections`, but never more than `most`."""
    count = min(most, int(rng.integers(1, wanted + 1)))
    return rng.choice(sections, count, replace=False)
