"""Progress of inference: a bar while it runs, and the speed of every stage afterwards."""
import time

from tqdm import tqdm

BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} voxel [{elapsed}{postfix}]"
LEAST_SECONDS = 1.0   # of computing, before a stage's own speed counts for more than what was expected


class Meter:
    """A `progress` for `inference.run`: a bar over all stages with voxels/s and the time that is left.

    Parameters
    ----------
    voxels : dict of str to int
        Of each stage, in the order of computing.
    seconds : dict of str to float, optional
        Expected for each stage: the time left is known from the start. A stage's own speed takes their place.
    hidden : bool
        Only measure.

    Attributes
    ----------
    computed, seconds : dict of str to number
        Voxels that this run computed, and the time it took, of each stage.
    kept : int
        Voxels that need not be computed, for they or all that reads them were finished by an earlier run.
    """

    def __init__(self, voxels, seconds=None, hidden=False):
        self._voxels, self._expected = dict(voxels), dict(seconds or {})
        self._told = dict.fromkeys(voxels, 0)
        self.bar = tqdm(total=sum(voxels.values()), unit_scale=True, disable=hidden, dynamic_ncols=True,
                        bar_format=BAR, desc=next(iter(voxels), ""))
        self.computed, self.seconds, self.kept = {}, {}, 0
        self._show()
        self.last = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def __call__(self, stage, voxels, kept):
        now = time.perf_counter()
        self.bar.set_description(stage, refresh=False)
        self._told[stage] += voxels
        if kept:
            self.kept += voxels
        else:
            self.computed[stage] = self.computed.get(stage, 0) + voxels
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self._show()
        self.bar.update(voxels)
        self.last = now

    def left(self):
        """Seconds to the end, as expected from what was computed so far and from what was known before; or None."""
        each = {stage: self._pace(stage) for stage in self._voxels}
        if None in each.values():
            return None
        return sum((self._voxels[stage] - self._told[stage]) * pace for stage, pace in each.items())

    def _pace(self, stage):
        """Seconds for a voxel of a stage."""
        seconds, computed = self.seconds.get(stage, 0.0), self.computed.get(stage, 0)
        if seconds < LEAST_SECONDS and self._expected.get(stage) is not None:
            return self._expected[stage] / max(self._voxels[stage], 1)
        return seconds / computed if computed else None

    def _show(self):
        left = self.left()
        if left is None:
            return
        remaining = sum(self._voxels.values()) - sum(self._told.values())
        speed = f"{remaining / left / 1000:.3g} kvoxel/s, " if left > 0 and remaining else ""
        self.bar.set_postfix_str(f"{speed}about {tqdm.format_interval(left)} left", refresh=False)

    def speeds(self):
        """Text like "vd2d 210 kvoxel/s, vd2d3d 105 kvoxel/s"; of what this run computed."""
        return ", ".join(f"{stage} {count / self.seconds[stage] / 1000:.3g} kvoxel/s"
                         for stage, count in self.computed.items()) or "nothing was left to compute"
