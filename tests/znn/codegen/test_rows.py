"""Rows combined by a matrix, against numpy."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from znn.codegen import jit, target
from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.rows import rows, touch
from znn.loops.winograd import matrices
from znn.runtime import driver

WALL = 64


def table(array, share=()):
    """Addresses of the rows of (rows, channels, width), and what leads to the next channel; 0 for shared rows."""
    return np.array([(row.ctypes.data, 0 if i in share else row.strides[0] // row.itemsize)
                     for i, row in enumerate(array)], np.int64)


def combine(matrix, source, out, bias, epilogue, share=()):
    where, (_, channels, width) = target.current(), source.shape
    code = jit.link(jit.object_code(rows(where, source.dtype, matrix, epilogue), where), where)
    to, of = table(out), table(source, share)
    driver.run([(code, to.ctypes.data, of.ctypes.data, bias.ctypes.data, width, channels)])


def check(matrix, channels, width, dtype, epilogue=PLAIN, share=(), tolerance=1e-5):
    rng = np.random.default_rng(0)
    source = rng.standard_normal((len(matrix[0]), channels, width)).astype(dtype)
    walled = np.full((len(matrix), channels, width + 2 * WALL), np.nan, dtype)
    out = walled[..., WALL:-WALL]
    out[:] = before = rng.standard_normal(out.shape)
    bias = rng.standard_normal(channels).astype(dtype)
    combine(matrix, source, out, bias, epilogue, share)
    for i in share:
        source[i] = source[i, 0]
    expected = np.einsum("ki,icx->kcx", np.array(matrix), source.astype(float))
    expected += before * epilogue.accumulate + bias[:, None] * epilogue.bias
    if epilogue.activation == "relu":
        expected = np.maximum(expected, 0)
    elif epilogue.activation:
        a, b = epilogue.activation
        expected = a * np.tanh(b * expected)
    np.testing.assert_allclose(out, expected, atol=tolerance)
    assert np.isnan(walled[..., :WALL]).all() and np.isnan(walled[..., -WALL:]).all()


@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(bias=True, activation="relu"), Epilogue(accumulate=True),
                                      Epilogue(True, True, (1.7159, 0.6666))], ids=str)
@pytest.mark.parametrize("width", [16, 17, 83])
def test_transforms(on_target, width, epilogue):
    for matrix in (matrices(4, 3)[2], matrices(4, 3)[0].T, matrices(4, 3)[0]):
        check(matrix.tolist(), 3, width, np.float32, epilogue)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_matrix(data):
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    row = st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.75, -0.75, 2.0]), min_size=width, max_size=width)
    matrix = data.draw(st.lists(row, min_size=height, max_size=height))
    check(matrix, 2, data.draw(st.integers(16, 50)), np.float64, tolerance=1e-12)


def test_a_row_may_be_shared_by_all_channels():
    check([[1.0, 2.0], [0.5, 0.0]], 4, 33, np.float32, share=(1,))


def test_asking_for_rows_changes_nothing():
    where, array = target.current(), np.ones((3, 5, 40), np.float32)
    code = jit.link(jit.object_code(touch(where, array.dtype, 3), where), where)
    of = table(array)
    driver.run([(code, 0, of.ctypes.data, 0, 40, 5)])
    assert (array == 1).all()
