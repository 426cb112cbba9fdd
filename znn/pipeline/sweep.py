"""Scores over thresholds of a boundary map: a coarse pass, then a fine one around each score's best."""
from data.errors import WrongSetting


def coarse_thresholds(coarse_step, fine_step):
    """The first pass: multiples of `coarse_step` between 0 and 1, and the outermost multiples of `fine_step`.

    The outermost two are there because the best threshold of a very confident map lies close to 0 or 1.

    Returns
    -------
    list of float
        Ascending; rounded to multiples of `fine_step`.

    Raises
    ------
    WrongSetting
        Unless 0 < fine_step <= coarse_step < 1.
    """
    if not 0 < fine_step <= coarse_step < 1:
        raise WrongSetting(f"coarse_step, fine_step: expected 0 < fine_step <= coarse_step < 1, found {coarse_step} "
                           f"and {fine_step}")
    ratio, last = _grid(coarse_step, fine_step)
    return [_threshold(k, fine_step) for k in sorted({1, last, *range(ratio, last, ratio)})]


def sweep(score_at, better, coarse_step=0.05, fine_step=0.01, progress=None):
    """Score a map at coarse thresholds, then at fine ones within one coarse step of the best of each score.

    With the defaults 21 coarse and up to 8 fine thresholds per score are visited, instead of 99.  What is found is
    the best of those visited: a second, separate peak narrower than a coarse step can be missed.

    Parameters
    ----------
    score_at : callable
        ``score_at(threshold) -> {name: object with .value}``; ``value`` None is undefined.
    better : dict of str to callable
        For each name the builtin `max` or `min`.
    coarse_step, fine_step : float
        See `coarse_thresholds`.
    progress : callable, optional
        Called with no argument after every threshold.

    Returns
    -------
    dict of float to dict
        What `score_at` returned, by threshold, ascending.
    """
    scores = {}

    def visit(thresholds):
        for t in sorted(set(thresholds) - scores.keys()):
            scores[t] = score_at(t)
            if progress:
                progress()

    visit(coarse_thresholds(coarse_step, fine_step))
    ratio, last = _grid(coarse_step, fine_step)
    centres = [best_threshold(scores, name, pick) for name, pick in better.items()]
    for centre in centres:
        if centre is not None:
            k = round(centre / fine_step)
            visit(_threshold(i, fine_step) for i in range(max(1, k - ratio + 1), min(last, k + ratio - 1) + 1))
    return dict(sorted(scores.items()))


def best_threshold(scores, name, pick):
    """The threshold of the best defined value; the middle one of those that share it, None when none is defined."""
    defined = {t: s[name].value for t, s in scores.items() if s[name].value is not None}
    if not defined:
        return None
    best = pick(defined.values())
    tied = sorted(t for t, value in defined.items() if value == best)
    return tied[len(tied) // 2]


def _grid(coarse_step, fine_step):
    return round(coarse_step / fine_step), round(1 / fine_step) - 1


def _threshold(k, fine_step):
    return round(k * fine_step, 10)
