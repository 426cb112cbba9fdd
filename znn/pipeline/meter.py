"""Progress of inference: a bar while it runs, and the speed of every stage afterwards."""
import time

from tqdm import tqdm


class Meter:
    """A `progress` for `inference.run`: a bar over all stages with voxels/s and the time left.

    Parameters
    ----------
    voxels : int
        Of the maps of all stages together.
    hidden : bool
        Only measure.

    Attributes
    ----------
    computed, seconds : dict of str to number
        Voxels that this run computed, and the time it took, of each stage.
    kept : int
        Voxels that were finished by an earlier run.
    """

    def __init__(self, voxels, hidden=False):
        self.bar = tqdm(total=voxels, unit="voxel", unit_scale=True, disable=hidden, dynamic_ncols=True)
        self.computed, self.seconds, self.kept = {}, {}, 0
        self.last = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def __call__(self, stage, voxels, kept):
        now = time.perf_counter()
        self.bar.set_description(stage, refresh=False)
        if kept:
            self.kept += voxels
            for count in ("n", "initial", "last_print_n"):      # done, but not by the speed of this run
                setattr(self.bar, count, getattr(self.bar, count) + voxels)
        else:
            self.computed[stage] = self.computed.get(stage, 0) + voxels
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
            self.bar.update(voxels)
        self.last = now

    def speeds(self):
        """Text like "vd2d 210 kvoxel/s, vd2d3d 105 kvoxel/s"; of what this run computed."""
        return ", ".join(f"{stage} {count / self.seconds[stage] / 1000:.3g} kvoxel/s"
                         for stage, count in self.computed.items()) or "nothing was left to compute"
