"""Tiles of the plane to points and back, against numpy."""
import ctypes
import itertools

import numpy as np
import pytest

from znn.codegen import jit, target
from znn.codegen.emit import Emitter
from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.transforms.plane import Lanes, from_points, to_points
from znn.codegen.transforms.shuffles import put_back, taken_apart
from znn.loops.winograd import matrices


def call(module, where, *arguments):
    code = jit.link(jit.object_code(module, where), where)
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(code)(*values)


def shuffled(where, dtype, shuffle, count, unit, array):
    e = Emitter(where, dtype, "pp")
    out, source = e.fn.args
    found = shuffle(e, [e.load(e.at(source, i * e.lanes)) for i in range(count)], unit)
    for i, v in enumerate(found):
        e.store(v, e.at(out, i * e.lanes))
    e.b.ret_void()
    result = np.empty_like(array)
    call(e.module, where, result, array)
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", range(1, 7))
def test_columns_are_taken_apart_and_put_back(on_target, m, dtype):
    dtype, lanes = np.dtype(dtype), on_target.lanes(np.dtype(dtype))
    columns = np.arange(m * lanes, dtype=dtype)
    for unit in (u for u in (1, 2, 4, 8, 16) if u <= lanes):
        apart = shuffled(on_target, dtype, taken_apart, m, unit, columns)
        assert np.array_equal(apart, columns.reshape(-1, m, unit).transpose(1, 0, 2).ravel())
        assert np.array_equal(shuffled(on_target, dtype, put_back, m, unit, apart), columns)


def lanes_of(width, unit, mx):
    """(tile, column of it) -> column of the row, for every lane."""
    first = [c for start in range(0, width, unit * mx) for c in range(start, min(start + unit, width))]
    return np.array(first)[:, None] + unit * np.arange(mx)


def rows_table(array):
    """Addresses of the rows of (channels, rows, columns)."""
    return np.array([(array[0, i].ctypes.data, array.strides[0] // array.itemsize) for i in range(array.shape[1])])


def matrix(a):
    return tuple(map(tuple, a.tolist()))


@pytest.mark.parametrize("unit", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(True, True, "relu")], ids=str)
def test_convolution_through_the_points(on_target, unit, epilogue):
    """A product at the points between the two transforms is a convolution; rows end where their columns do."""
    rng, dtype, channels = np.random.default_rng(0), np.dtype(np.float32), 3
    for (my, ky, mx, kx), width in itertools.product([(4, 3, 4, 3), (2, 5, 3, 4), (5, 2, 2, 3)], [17, 61, 83]):
        if width < on_target.lanes(dtype):
            continue
        (back_y, at_y, to_y), (back_x, at_x, to_x) = matrices(my, ky), matrices(mx, kx)
        vectors = -(-len(lanes_of(width, unit, mx)) // on_target.lanes(dtype))
        pitch = vectors * on_target.lanes(dtype)
        lanes = Lanes(mx, unit, vectors, pitch, channels * pitch + 16)
        columns = width + unit * (kx - 1)
        wall = np.full((channels, len(to_y), columns + 200), np.nan, dtype)
        x = wall[..., 100:-100]
        x[:] = rng.standard_normal(x.shape)
        points = np.zeros((len(to_y) * len(to_x), lanes.step), dtype)
        call(to_points(on_target, dtype, matrix(to_y), matrix(to_x), lanes), on_target,
             points, rows_table(x), columns, vectors, 0, channels)
        w = rng.standard_normal((ky, kx))
        points *= (at_y @ w @ at_x.T).reshape(-1, 1).astype(dtype)
        out = np.full((channels, my, width + 200), np.nan, dtype)
        y = out[..., 100:-100]
        y[:] = before = rng.standard_normal(y.shape).astype(dtype)
        bias = rng.standard_normal(channels).astype(dtype)
        call(from_points(on_target, dtype, matrix(back_y.T), matrix(back_x.T), lanes, epilogue), on_target,
             rows_table(y), points, bias, width, vectors, 0, channels)
        expected = sum(w[a, b] * x[:, a:a + my, b * unit:b * unit + width] for a in range(ky) for b in range(kx))
        if epilogue != PLAIN:
            expected = np.maximum(expected + before + bias[:, None, None], 0)
        np.testing.assert_allclose(y, expected, atol=3e-5)
        assert np.isnan(out[..., :100]).all() and np.isnan(out[..., -100:]).all()


def test_points_are_those_of_the_tiles():
    """A point of a tile is the sum of its columns and rows by the two matrices; columns beyond the row are zero."""
    where, dtype, unit, mx, width = target.current(), np.dtype(np.float32), 2, 4, 37
    to = matrices(4, 3)[2]
    columns = width + 2 * unit
    first = lanes_of(width, unit, mx)[:, 0]
    vectors = -(-len(first) // where.lanes(dtype))
    pitch = vectors * where.lanes(dtype)
    x = np.random.default_rng(0).standard_normal((1, 6, columns)).astype(dtype)
    points = np.empty((36, pitch), dtype)
    call(to_points(where, dtype, matrix(to), matrix(to), Lanes(mx, unit, vectors, pitch, pitch)), where,
         points, rows_table(x), columns, vectors, 0, 1)
    padded = np.pad(x[0], ((0, 0), (0, 40)))
    tiles = padded[:, first[:, None] + unit * np.arange(6)]
    expected = np.einsum("pi,qj,itj->pqt", to, to, tiles.astype(float)).reshape(36, -1)
    np.testing.assert_allclose(points[:, :len(first)], expected, atol=1e-5)
