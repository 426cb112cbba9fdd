"""The blocks of a plan in the order in which they are computed, with what each reads and where its map goes."""
from dataclasses import dataclass, replace

from data.normalise import scaled_map
from data.roi import Block
from data.volume import Volume
from znn.pipeline.rolling import RollingMap, layers, spans, sweep
from znn.pipeline.work import Stage, held_sections


@dataclass(frozen=True)
class Task:
    """One block.

    Attributes
    ----------
    stage : Stage
    block : Block
        In voxels of the image.
    index : int
        Of the block among those of its map.
    target : object
        The map that its values go to, with `put(index, roi, values)`.
    source : Earlier or None
        The map before.
    """

    stage: Stage
    block: Block
    index: int
    target: object
    source: object

    @property
    def place(self):
        """What is written, in voxels of the map."""
        return self.block.write.shift(-b for b in self.stage.region.begin)


@dataclass(frozen=True)
class Earlier:
    """The map of a stage as the next one reads it: scaled, mirrored at its faces, in voxels of the image.

    Attributes
    ----------
    values : object
        The map, in memory or on the disk.
    scaled : Volume
    begin : (z, y, x)
        Its first voxel, in the image.
    """

    values: object
    scaled: Volume
    begin: tuple

    @classmethod
    def of(cls, stage, values, image, scaling):
        volume = image.crop(stage.region).over(values, f"map of {stage.name}")
        return cls(values, scaled_map(volume, scaling), stage.region.begin)

    def read(self, roi):
        """The scaled map in a region of the image."""
        return self.scaled.read_mirrored(roi.shift(-b for b in self.begin))


def in_passes(plan, maps, image, scaling, progress):
    """The tasks of a plan whose maps are all kept.

    Parameters
    ----------
    plan : Plan
    maps : dict of str to object
        The kept map of each stage, see `inference.MemoryMap`.
    image : Volume
    scaling : str
        See `data.scale_map`.
    progress : callable
        Told of the blocks that are done already.

    Yields
    ------
    Task
    """
    source = None
    for stage in plan.stages:
        kept = maps[stage.name]
        for i, block in enumerate(stage.blocks()):
            if kept.done[i]:
                progress(stage.name, block.write.size, True)
            else:
                yield Task(stage, block, i, kept, source)
        source = Earlier.of(stage, kept.values, image, scaling)


def in_columns(plan, maps, image, scaling, progress):
    """The tasks of a plan whose stages go together, column by column; as `in_passes`.

    Where all that reads of an earlier map is done, it is not computed, and `progress` is told so.
    """
    last = plan.stages[-1]
    kept = maps[last.name]
    number = {block.write.begin: i for i, block in enumerate(last.blocks())}
    for stages in plan.columns(image):
        yield from _column(stages, kept, number, image, scaling, progress)


def _column(stages, kept, number, image, scaling, progress):
    cuts = [layers(stage) for stage in stages]
    needs = [spans(stage, cut, image.shape[0]) for stage, cut in zip(stages, cuts)]
    levels = [_blocks(stages[-1], layer) for layer in cuts[-1]]
    done = [[kept.done[number[b.write.begin]] for b in level] for level in levels]
    for block in (b for level, marks in zip(levels, done) for b, mark in zip(level, marks) if mark):
        progress(stages[-1].name, block.write.size, True)
    wanted = [k for k, marks in enumerate(done) if not all(marks)]
    order = list(sweep(cuts, needs, wanted))
    for i, stage in enumerate(stages[:-1]):
        skipped = set(range(len(cuts[i]))).difference(k for j, k in order if j == i)
        if skipped:
            sections = sum(cuts[i][k][1] - cuts[i][k][0] for k in skipped)
            progress(stage.name, sections * stage.region.shape[1] * stage.region.shape[2], True)
    held = [RollingMap(s.region.shape, n) for s, n in zip(stages, held_sections(stages, image))]
    sources = [None, *(Earlier.of(s, values, image, scaling) for s, values in zip(stages, held))]
    for i, k in order:
        for b, block in enumerate(levels[k] if i == len(held) else _blocks(stages[i], cuts[i][k])):
            if i < len(held):
                yield Task(stages[i], block, b, held[i], sources[i])
            elif not done[k][b]:
                yield Task(stages[i], block, number[block.write.begin], kept, sources[i])


def _blocks(stage, layer):
    """The blocks of a layer, in raster order."""
    (begin, end), region = layer, stage.region
    shape = (end - begin, *region.shape[1:])
    return replace(stage, region=replace(region, offset=(begin, *region.begin[1:]), shape=shape)).blocks()
