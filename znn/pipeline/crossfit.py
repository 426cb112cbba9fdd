"""Cross-fitting: maps of the training sections made by networks that have not seen them.

A network knows the sections that it was trained on better than others, so the map that the next stage learns from is
better than those it will meet. With k folds k more networks are trained, each without one part of the training
sections, and map that part::

    sections        | part 1 | part 2 | part 3 | held out         |
    mapped by       | fold 1 | fold 2 | fold 3 | the stage itself |
    trained on      | 2, 3   | 1, 3   | 1, 2   | 1, 2, 3          |

What is kept of the stage is the network that was trained on all parts. (Wolpert, "Stacked generalization", Neural
Networks 5(2), 1992.)
"""
import itertools
from dataclasses import dataclass, replace

from data import Roi
from znn.pipeline.errors import WrongSetting


@dataclass(frozen=True)
class Fit:
    """A network to train: that of a stage, or of a fold of it.

    Attributes
    ----------
    index : int
        Of the stage.
    label : str
        Name of the stage, or ``<stage>.fold<number>``.
    fold : int or None
        The part that is left out.
    before : str or None
        Label of the network of the stage before whose layers this one may begin with: of the same fold, where
        that stage has the same parts, since it has not seen what this one must not see.
    """

    index: int
    label: str
    fold: int | None = None
    before: str | None = None


def fits(stages):
    """All networks of a run, in the order in which they are trained.

    Parameters
    ----------
    stages : dict of str to stages.StageSettings

    Raises
    ------
    WrongSetting
        If folds are asked for of a stage whose map no stage reads.
    """
    found, names = [], list(stages)
    for index, (name, stage) in enumerate(stages.items()):
        before = names[index - 1] if index else None
        found.append(Fit(index, name, None, before))
        if stage.folds > 1 and name == names[-1]:
            raise WrongSetting(f"stages.{name}.folds: expected 1 for the last stage, whose map no stage reads, found "
                               f"{stage.folds}; give them to the stage before")
        same = index > 0 and stages[before].folds == stage.folds
        found += [Fit(index, _label(name, fold), fold, _label(before, fold) if same else before)
                  for fold in range(stage.folds) if stage.folds > 1]
    return found


def _label(name, fold):
    return f"{name}.fold{fold + 1}"


def parts(stack, folds):
    """The training sections in as many runs of about equal length: regions of the image, in order.

    Raises
    ------
    WrongSetting
        If there are not as many sections.
    """
    whole = stack.training.roi
    if whole.shape[0] < folds:
        raise WrongSetting(f"folds: expected at most as many as {stack.name} has training sections, {whole.shape[0]}, "
                           f"found {folds}; give fewer")
    edges = [whole.begin[0] + whole.shape[0] * i // folds for i in range(folds + 1)]
    return [_sections(whole, *pair) for pair in itertools.pairwise(edges)]


def outside(source, part):
    """Sources of the sections of a source before and after a part of it; nothing of the part is read."""
    runs = (source.roi.begin[0], part.begin[0]), (part.end[0], source.roi.end[0])
    return [replace(source, roi=_sections(source.roi, *run)) for run in runs if run[0] < run[1]]


def regions(stack, folds):
    """Which network maps which part of a stack: pairs of a region of the image and a fold or None, in order."""
    own = [(part, fold) for fold, part in enumerate(parts(stack, folds))]
    before = _sections(stack.image.roi, 0, own[0][0].begin[0])
    after = _sections(stack.image.roi, own[-1][0].end[0], stack.image.shape[0])
    return [pair for pair in ((before, None), *own, (after, None)) if pair[0].size]


def _sections(roi, first, end):
    return Roi.between((first, *roi.begin[1:]), (end, *roi.end[1:]))
