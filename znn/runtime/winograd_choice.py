"""Whether a convolution is computed directly, at points along y, or at points of the plane: products are counted.

What is counted is those of a tile at its points, and for its transforms as many as take the time that these take.
"""
import itertools

from znn.codegen.group import Group, elements, members, sums_integers
from znn.loops.winograd import POINTS
from znn.runtime import winograd, winograd_layout
from znn.runtime.database import follows_schedules
from znn.runtime.winograd_plane import PlaneTiles

FEWEST = 8         # rows of tiles: with less, threads have nothing to do
GAIN = 0.74        # part of the direct form's time that points must stay below by this count
PASS = 6           # multiplications that the transforms of a row at a point take the time of
AT_POINT = 4       # the same for a tile of the plane: for each of its points,
FOR_OUTPUT = 18    # and for each of its outputs, whose columns are read and written from memory


def form(extent, ci, co, taps, dilation, lanes):
    """Size of the tiles of the form that is soonest done.

    Parameters
    ----------
    extent : (int, int, int)
        Of the output, (z, y, x).
    ci, co : int
    taps, dilation : (int, int, int)
    lanes : int
        Of a vector.

    Returns
    -------
    None, int, or (int, int)
        None for the direct form, m for rows in tiles of m, (my, mx) for tiles of the plane.
    """
    found = _plane(extent, ci, co, taps, dilation, lanes) | _rows(extent, ci, co, taps, dilation, lanes)
    return _soonest(found, extent, ci, co, taps)


def rows_form(extent, ci, co, taps, dilation, lanes, held=1):
    """`form` without tiles of the plane; `ci` counts elements, each of which holds so many channels."""
    return _soonest(_rows(extent, ci, co, taps, dilation, lanes, held), extent, ci, co, taps)


@follows_schedules
def made(co, ci, extent, taps, dilation, dtype, epilogue, where, mirrored=False):
    """`winograd.Tiles` or `PlaneTiles` for a convolution, None where the direct form is sooner done.

    Parameters are those of `form` and of these.
    """
    lanes = where.lanes(dtype)
    if sums_integers(dtype):  # integers at points would need more bits
        return None
    if isinstance(dtype, Group) or epilogue.stores:  # which tiles of the plane know nothing of
        m = rows_form(extent, elements(dtype, ci), co, taps, dilation, lanes, members(dtype))
    else:
        m = form(extent, ci, co, taps, dilation, lanes)
    if isinstance(m, tuple):
        return PlaneTiles(ci, co, taps, dilation, extent[1:], m, dtype, epilogue, where, mirrored)
    return m and winograd.Tiles(ci, co, taps, dilation, extent[2], m, dtype, epilogue, where, mirrored)


def requests(co, ci, shape, taps, dilation, dtype, where, planes):
    """What these ask for, and how often a run runs it on one thread; None where the direct form is sooner done.

    `shape` is (n, z, y, x) of the output, `planes` how many of z count: a gradient's last ones are not reached by all
    taps, which is none of its work.
    """
    m = form(shape[1:], ci, co, taps, dilation, where.lanes(dtype))
    ask = winograd_layout.requests if isinstance(m, tuple) else winograd.requests
    return m and ask(ci, co, taps, dilation, (shape[0], planes, *shape[2:]), m, dtype, where)


def _soonest(costs, extent, ci, co, taps):
    direct = extent[1] * extent[2] * taps[0] * taps[1] * taps[2] * ci * co
    best = min(costs, key=costs.get, default=None)
    return None if best is None or costs[best] > GAIN * direct else best


def _rows(extent, ci, co, taps, dilation, lanes, held=1):
    """Cost of a plane of the output by the rows of a tile."""
    each = taps[0] * taps[2] * ci * co + PASS * (taps[0] * held * ci + co)  # of a column at a point
    found = {}
    for m in _sizes(taps[1]) if extent[2] >= lanes else ():
        many = winograd.tiles(extent[1], dilation[1], m)
        if extent[0] * many >= FEWEST:
            found[m] = many * (m + taps[1] - 1) * extent[2] * each
    return found


def _plane(extent, ci, co, taps, dilation, lanes):
    """Cost of a plane of the output by the rows and columns of a tile."""
    unit, found = dilation[2], {}
    fits = extent[2] >= lanes and (unit % lanes == 0 or lanes % unit == 0)
    for my, mx in itertools.product(_sizes(taps[1]), _sizes(taps[2])) if fits else ():
        many, along = winograd.tiles(extent[1], dilation[1], my), winograd_layout.tiles_along(extent[2], unit, mx)
        points = (my + taps[1] - 1) * (mx + taps[2] - 1)
        transforms = (AT_POINT * points + FOR_OUTPUT * my * mx) * (taps[0] * ci + co)
        if extent[0] * many >= FEWEST:
            found[my, mx] = many * along * (points * taps[0] * ci * co + transforms)
    return found


def _sizes(taps):
    """Of tiles whose points are known."""
    return [m for m in range(2, max(POINTS)) if m + taps - 1 in POINTS and taps > 1]
