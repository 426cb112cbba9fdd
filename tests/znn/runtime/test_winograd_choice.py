"""Which form computes a convolution."""
import pytest

from znn.runtime.winograd_choice import form, rows_form


@pytest.mark.parametrize("extent, ci, co, taps, dilation, plane, rows", [
    ((5, 170, 170), 36, 36, (1, 3, 3), (1, 2, 2), (4, 4), 4),         # conv2b of VD2D3D
    ((1, 100, 100), 60, 100, (2, 3, 3), (1, 8, 8), (4, 4), 4),        # conv4c
    ((1, 180, 180), 48, 48, (1, 5, 5), (1, 2, 2), (2, 2), 2),         # conv2 of N4
    ((1, 160, 160), 48, 48, (1, 4, 4), (1, 4, 4), (3, 3), 3),         # conv3
    ((5, 150, 150), 36, 36, (1, 3, 3), (1, 3, 3), 4, 4),              # three columns are no part of a vector
    ((5, 180, 180), 1, 24, (1, 3, 3), (1, 1, 1), None, None),         # one map in: the transforms cost more
    ((1, 100, 100), 100, 2, (1, 1, 1), (1, 1, 1), None, None),        # nothing to save
    ((3, 90, 90), 36, 36, (3, 1, 3), (1, 1, 1), None, None),          # nothing to save along y
    ((3, 90, 90), 36, 36, (1, 3, 1), (1, 1, 1), 4, 4),                # nothing to save along x
    ((1, 1, 500), 36, 36, (1, 3, 3), (1, 1, 1), None, None),          # one row of tiles: nothing for a second thread
    ((9, 50, 15), 36, 36, (1, 3, 3), (1, 1, 1), None, None),          # less than a vector of columns
], ids=str)
def test_the_rule(extent, ci, co, taps, dilation, plane, rows):
    assert form(extent, ci, co, taps, dilation, 16) == plane
    assert rows_form(extent, ci, co, taps, dilation, 16) == rows
