"""Progress of inference: a bar with voxels/s and the time left while it runs, the speed of every stage afterwards."""
import time

from tqdm import tqdm

BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} voxel [{elapsed}{postfix}]"
ENOUGH = 0.1      # of the voxels to be computed, for a prediction that the summary holds against what came of it


class Meter:
    """A `progress` for `inference.run`: a bar over all stages with voxels/s and the time left.

    Stages differ in speed and take turns, so the time left is reckoned from what each has to do and its own speed.

    Parameters
    ----------
    voxels : dict of str to int
        Of the map of each stage.
    hidden : bool
        Only measure.

    Attributes
    ----------
    computed, seconds : dict of str to number
        Voxels that this run computed, and the time it took, of each stage.
    kept : int
        Voxels that need not be computed, for they or all that reads them were finished by an earlier run.
    predicted : float or None
        Seconds for all that this run computes, as predicted when `ENOUGH` of it was done.
    """

    def __init__(self, voxels, hidden=False):
        self._left = dict(voxels)
        self.computed, self.seconds = dict.fromkeys(voxels, 0), dict.fromkeys(voxels, 0.0)
        self.kept, self.predicted = 0, None
        self.bar = tqdm(total=sum(voxels.values()), unit_scale=True, disable=hidden, dynamic_ncols=True,
                        bar_format=BAR)
        self.last = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def __call__(self, stage, voxels, kept):
        now = time.perf_counter()
        self._left[stage] -= voxels
        if kept:
            self.kept += voxels
        else:
            self.computed[stage] += voxels
            self.seconds[stage] += now - self.last
            self._show(stage)
        self.bar.set_description(stage, refresh=False)
        self.bar.update(voxels)
        self.last = now

    def left(self):
        """Seconds until all is done; None while the speed of a stage is not known that has something to do."""
        waiting = [stage for stage, voxels in self._left.items() if voxels]
        if not all(self.computed[stage] for stage in waiting):
            return None
        return sum(self._left[stage] * self.seconds[stage] / self.computed[stage] for stage in waiting)

    def _show(self, stage):
        left, done = self.left(), sum(self.computed.values())
        soon = "" if left is None else f", about {tqdm.format_interval(left)} left"
        self.bar.set_postfix_str(self._speed(stage) + soon, refresh=False)
        if self.predicted is None and left is not None and done >= ENOUGH * (done + sum(self._left.values())):
            self.predicted = sum(self.seconds.values()) + left

    def _speed(self, stage):
        return f"{self.computed[stage] / max(self.seconds[stage], 1e-9) / 1000:.3g} kvoxel/s"

    def speeds(self):
        """Text like "vd2d 210 kvoxel/s, vd2d3d 105 kvoxel/s; predicted 61 s, taken 60 s"; of what this run computed."""
        if self.predicted is None:
            return "nothing was left to compute"
        each = ", ".join(f"{stage} {self._speed(stage)}" for stage, count in self.computed.items() if count)
        return f"{each}; predicted {self.predicted:.3g} s, taken {sum(self.seconds.values()):.3g} s"
