"""Which augmentations, how often, how strong."""
from dataclasses import dataclass, fields

from data.errors import WrongSetting
from data.orientation import Orientation


@dataclass
class Augmentation:
    """Random changes of training patches; every ``*_p`` is the probability that a patch is changed so.

    The defaults are the published recipe of VD2D3D: four fair coins for flips and the transpose, which are exact
    permutations. `serial_section` adds what goes wrong in cutting and imaging. Lengths are pixels of x and y.

    elastic : smooth deformation in the plane, the same in every section
        `elastic_sigma_px` is the standard deviation of the displacement along each axis (at most 3 of them),
        `elastic_spacing_px` the distance of its control points.
    slip, shift : one section, or one and all that follow, moved by up to `misalign_max_px` along each axis
    contrast : each section times 1 +- `contrast_scale` plus +- `contrast_shift` (standard deviations)
    gamma : each section to the power 2 ** (+- `gamma_log2`)
    blur : up to `blur_max_sections` sections out of focus by up to `blur_max_sigma_px`
    missing : up to `missing_max_sections` sections blank; never all of them

    Slip, shift and missing need a second section: on a single one they do nothing.
    """

    flip_z_p: float = 0.5
    flip_y_p: float = 0.5
    flip_x_p: float = 0.5
    transpose_xy_p: float = 0.5
    elastic_p: float = 0.0
    elastic_sigma_px: float = 4.0
    elastic_spacing_px: float = 40.0
    slip_p: float = 0.0
    shift_p: float = 0.0
    misalign_max_px: int = 12
    contrast_p: float = 0.0
    contrast_scale: float = 0.2
    contrast_shift: float = 0.2
    gamma_p: float = 0.0
    gamma_log2: float = 0.5
    blur_p: float = 0.0
    blur_max_sections: int = 1
    blur_max_sigma_px: float = 4.0
    missing_p: float = 0.0
    missing_max_sections: int = 1

    def __post_init__(self):
        at_least_one = ("misalign_max_px", "blur_max_sections", "missing_max_sections", "elastic_spacing_px")
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_p") and not 0 <= value <= 1:
                raise WrongSetting(f"augmentation {name}: expected a probability in 0..1, found {value}")
            if name in at_least_one and value < 1:
                raise WrongSetting(f"augmentation {name}: expected at least 1, found {value}")
            if not value >= 0:
                raise WrongSetting(f"augmentation {name}: expected no negative number, found {value}")

    @classmethod
    def none(cls):
        """Patches as they are in the volume."""
        return cls(**{f.name: 0.0 for f in fields(cls) if f.name.endswith("_p")})

    @classmethod
    def serial_section(cls):
        """The defaults and, with moderate probabilities, everything that befalls serial sections."""
        return cls(elastic_p=0.5, slip_p=0.1, shift_p=0.1, contrast_p=0.5, gamma_p=0.5, blur_p=0.1, missing_p=0.1)

    def orientation(self, rng):
        """Draw flips and transpose from a numpy Generator."""
        coins = rng.random(4)
        flips = tuple(bool(c < p) for c, p in zip(coins, (self.flip_z_p, self.flip_y_p, self.flip_x_p)))
        return Orientation(flips, bool(coins[3] < self.transpose_xy_p))
