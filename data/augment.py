"""Which augmentations, how often, how strong; and the drawing of one choice of them."""
from dataclasses import dataclass, fields

from data.errors import WrongSetting
from data.orientation import Orientation


@dataclass
class Augmentation:
    """Random changes of training patches; every ``*_p`` is the probability that a patch is changed so.

    The defaults are the published recipe of VD2D3D: four fair coins for flips and the transpose. They are exact
    permutations.
    """

    flip_z_p: float = 0.5
    flip_y_p: float = 0.5
    flip_x_p: float = 0.5
    transpose_xy_p: float = 0.5

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_p") and not 0 <= value <= 1:
                raise WrongSetting(f"augmentation {field.name}: expected a probability in 0..1, found {value}")

    @classmethod
    def none(cls):
        """Patches as they are in the volume."""
        return cls(**{f.name: 0.0 for f in fields(cls) if f.name.endswith("_p")})

    def orientation(self, rng):
        """Draw flips and transpose from a numpy Generator."""
        coins = rng.random(4)
        flips = tuple(bool(c < p) for c, p in zip(coins, (self.flip_z_p, self.flip_y_p, self.flip_x_p)))
        return Orientation(flips, bool(coins[3] < self.transpose_xy_p))
