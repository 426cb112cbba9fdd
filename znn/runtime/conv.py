"""The three passes of a valid, dilated 3D convolution on numpy arrays.

Each is computed at points (`winograd`) where that is sooner done, else directly; ``ZNN_WINOGRAD=0`` computes all
directly.  Arrays are (n, channels, z, y, x), contiguous, all float32 or all float64; weights (out, in, kz, ky, kx).
Anything else is a ValueError: kernels would read and write outside of it.
"""
from znn.codegen import target
from znn.codegen.group import elements
from znn.codegen.plan import Epilogue
from znn.loops.contraction import row_major
from znn.loops.convolution import conv_backward_data, conv_backward_weights, conv_forward
from znn.runtime import arena, arrays, default, driver, matrix, pointwise, switches, winograd_choice, winograd_weights
from znn.runtime.arrays import valid
from znn.runtime.database import follows_schedules
from znn.runtime.request import Request

GRADIENT = "the gradient of a convolution"  # who asks, in its messages


def forward(x, w, bias=None, dilation=(1, 1, 1), activation=None, onto=None):
    """``y[n, co, p] = bias[co] + sum_{ci, k} w[co, ci, k] x[n, ci, p + dilation k]``, then the activation.

    Parameters
    ----------
    x, w, bias : ndarray
    dilation : (int, int, int)
    activation : None, "relu", or (a, b) for a tanh(b s)
    onto : ndarray, optional
        An array of y's shape that the convolution is added to, before the activation; it becomes the result.

    Returns
    -------
    y : ndarray, (n, out, z - dilation_z (kz - 1), ...)
    """
    what = "convolution"
    arrays.check(what, "x", x)
    arrays.check(what, "w", w, dtype=x.dtype)
    shape = arrays.convolved(what, x.shape, w.shape, dilation)
    if bias is not None:
        arrays.check(what, "bias", bias, shape[1:2], x.dtype)
    if onto is not None:
        arrays.check(what, "onto", onto, shape, x.dtype, written=True)
    arrays.check_activation(activation)
    y = arena.empty(shape, x.dtype) if onto is None else onto
    epilogue = Epilogue(onto is not None, bias is not None, activation)
    tiles, kernels = forward_way(x.shape, w.shape, dilation, epilogue, x.dtype)
    if tiles:
        tiles.run(y, x, w, bias)
    else:
        _run(kernels, y, x, w, bias)
    return y


def forward_way(x_shape, w_shape, dilation, epilogue, dtype):
    """What computes `forward`: tiles at points, or else the kernels of the parts of a row; the other one is None.

    `dtype` is that of the elements of x, a numpy dtype or a Group; shapes count channels, not elements.
    """
    extent, dilation, where = valid(x_shape, w_shape[2:], dilation), tuple(dilation), target.current()
    on_matrix_unit = matrix.made(x_shape, w_shape[0], w_shape[2:], dilation, dtype, epilogue, where)
    if on_matrix_unit:
        return on_matrix_unit, None
    tiles = _at_points() and winograd_choice.made(*w_shape[:2], extent, w_shape[2:], dilation, dtype, epilogue, where)
    if tiles:
        return tiles, None
    return None, _forward(x_shape, w_shape, extent, dilation, dtype, epilogue, where)


def backward(x, w, y, grad, dilation=(1, 1, 1), activation=None, needs=(True, True, True)):
    """Gradients of `forward` for x, w and bias.

    Parameters
    ----------
    x, w : ndarray
        As given to `forward`.
    y : ndarray or None
        What the activation returned; only read when there is one.
    grad : ndarray
        Gradient of the loss for y.
    activation : None, "relu", or (a, b) for y = a tanh(b s)
    needs : (bool, bool, bool)
        Which of the three to compute.

    Returns
    -------
    dx, dw, db : ndarray or None
    """
    arrays.check(GRADIENT, "x", x)
    arrays.check(GRADIENT, "w", w, dtype=x.dtype)
    arrays.check(GRADIENT, "grad", grad, arrays.convolved(GRADIENT, x.shape, w.shape, dilation), x.dtype)
    g, left, db = prepared(grad, y, activation, dilation[2] * (w.shape[4] - 1))
    dx = backward_data(x.shape, w, g, left, grad.shape, dilation) if needs[0] else None
    dw = backward_weights(x, w.shape, g, left, grad.shape, dilation) if needs[1] else None
    return dx, dw, db if needs[2] else None


def prepared(grad, y, activation, reach):
    """The gradient before the activation, with at least `reach` zeros on both sides of each row.

    Returns
    -------
    g : ndarray, (n, out, z, rows, pitch)
        Rows begin on cache lines, and so does their first voxel, number `left`; rows beyond those of `grad` are
        arbitrary.
    left : int
    db : ndarray, (out,)
        Its sums by channel, the gradient for the bias.
    """
    arrays.check(GRADIENT, "grad", grad)
    arrays.check_volumes(GRADIENT, "grad", grad.shape)
    shape, left = padded_shape(grad.shape, reach, grad.dtype)
    g = arena.empty(shape, grad.dtype)
    return g, left, pointwise.gradient(g, grad, y if activation else grad, activation, left)


def padded_shape(extent, reach, dtype):
    """Shape of a gradient with zeros beside its rows, and where rows begin.

    The lines of a row and the rows of a plane are odd in number: channels are then far from a multiple of the caches'
    period apart, and do not drive each other out.
    """
    line = arena.LINE // dtype.itemsize
    left = -(-reach // line) * line
    return (*extent[:3], extent[3] | 1, arena.pitch(left + extent[4] + reach, dtype)), left


def backward_data(x_shape, w, g, left, extent, dilation=(1, 1, 1)):
    """Gradient for x from what `prepared` made of a gradient of shape `extent` (n, out, z, y, x)."""
    arrays.check(GRADIENT, "w", w)
    arrays.check_prepared(GRADIENT, x_shape, w.shape, g, left, extent, dilation, w.dtype)
    dx, dilation = arena.empty(x_shape, g.dtype), tuple(dilation)
    tiles = _at_points() and winograd_choice.made(*w.shape[1::-1], x_shape[2:], w.shape[2:], dilation, g.dtype,
                                                  Epilogue(), target.current(), mirrored=True)
    if tiles:
        reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
        tiles.run(dx, g, w, start=left - reach[2], extent=extent[2:4], before=reach[:2])
    else:
        kernels = _data(x_shape, w.shape, extent[4], dilation, row_major(g.shape), left, g.dtype, target.current())
        _run(kernels, dx, g, w)
    return dx


def backward_weights(x, w_shape, g, left, extent, dilation=(1, 1, 1)):
    """Gradient for w from what `prepared` made of a gradient of shape `extent` (n, out, z, y, x)."""
    arrays.check(GRADIENT, "x", x)
    arrays.check_prepared(GRADIENT, x.shape, w_shape, g, left, extent, dilation, x.dtype)
    dilation, where = tuple(dilation), target.current()
    tiles = _at_points() and _weight_tiles(w_shape, (extent[0], *extent[2:]), dilation, g.dtype, where)
    if tiles:
        return tiles.run(x, g, left)
    run = _weights(x.shape, w_shape, extent[2:], dilation, row_major(g.shape), left, g.dtype, where)
    dw = arena.empty((run.copies, *w_shape), g.dtype)
    driver.run([run.piece(dw, x, g)])
    return dw[0] if run.copies == 1 else dw.sum(0)


def _run(kernels, out, a, w, bias=None):
    packed = [k.pack(w) for k in kernels]
    driver.run([k.piece(out, a, p, bias) for k, p in zip(kernels, packed)])


def forward_requests(x_shape, w_shape, dilation, epilogue, dtype, where, points=True):
    """What `forward` asks for, without `points` what its direct form does: how often each `Request` runs; dict."""
    extent = valid(x_shape, w_shape[2:], dilation)
    found = points and _at_points() and winograd_choice.requests(*w_shape[:2], (x_shape[0], *extent), w_shape[2:],
                                                                 dilation, dtype, where, extent[0])
    return found or dict.fromkeys(_direct_forward(x_shape, w_shape, extent, dilation, dtype, epilogue, where), 1)


def data_requests(x_shape, w_shape, dilation, reach, dtype, where, points=True):
    """As `forward_requests`, for `backward_data` where `prepared` was asked for `reach` zeros."""
    extent = valid(x_shape, w_shape[2:], dilation)
    found = points and _at_points() and winograd_choice.requests(*w_shape[1::-1], (x_shape[0], *x_shape[2:]),
                                                                 w_shape[2:], dilation, dtype, where, extent[0])
    held, left = padded_shape((x_shape[0], w_shape[0], *extent), reach, dtype)
    return found or dict.fromkeys(_direct_data(x_shape, w_shape, extent[2], dilation, row_major(held), left, dtype,
                                               where), 1)


def weights_requests(x_shape, w_shape, dilation, reach, dtype, where, points=True):
    """As `data_requests`, for `backward_weights`."""
    extent, (co, ci), taps = valid(x_shape, w_shape[2:], dilation), w_shape[:2], w_shape[2:]
    rows = points and _at_points() and _rows(co, ci, extent, taps, dilation, dtype, where)
    if rows:
        return winograd_weights.requests(ci, co, taps, dilation, (x_shape[0], *extent), rows, dtype, where)
    held, left = padded_shape((x_shape[0], co, *extent), reach, dtype)
    return {_direct_weights(x_shape, w_shape, extent, dilation, row_major(held), left, dtype, where): 1}


def _at_points():
    return switches.on("ZNN_WINOGRAD")


def _rows(co, ci, extent, taps, dilation, dtype, where):
    """Rows of a tile for the gradient of the weights, None where the direct form is sooner done."""
    return winograd_choice.rows_form(extent, ci, co, taps, dilation, where.lanes(dtype))


@follows_schedules
def _weight_tiles(w_shape, extent, dilation, dtype, where):
    """`_tiles` for the gradient of the weights; extent is (n, z, y, x)."""
    (co, ci), taps = w_shape[:2], w_shape[2:]
    rows = _rows(co, ci, extent[1:], taps, dilation, dtype, where)
    return rows and winograd_weights.WeightTiles(ci, co, taps, dilation, extent, rows, dtype, where)


@follows_schedules
def _forward(*shapes):
    return [request.kernel() for request in _direct_forward(*shapes)]


@follows_schedules
def _data(*shapes):
    return [request.kernel() for request in _direct_data(*shapes)]


@follows_schedules
def _weights(*shapes):
    return _direct_weights(*shapes).kernel()


def _direct_forward(x_shape, w_shape, extent, dilation, dtype, epilogue, where):
    """For the parts of a row of y."""
    n, ci, together = x_shape[0], elements(dtype, x_shape[1]), epilogue.stores.count if epilogue.stores else 1
    return [Request(conv_forward(n, ci, w_shape[0], w_shape[2:], extent, dilation, columns=(first, end),
                                 together=together), default.RULES[rule], where, dtype, "before", epilogue)
            for first, end, rule in default.columns(extent[2], w_shape[0], where.lanes(dtype))]


def _direct_data(x_shape, w_shape, held, dilation, g_strides, left, dtype, where):
    """For the parts of a row of x; where the outer taps miss the gradient, they are left out, but for one."""
    taps, reach = w_shape[4], dilation[2]
    requests = []
    for first, end, rule in _data_columns(x_shape[4], w_shape[1], taps, reach, where.lanes(dtype)):
        tap = max(0, -((held - 1 - first) // reach))
        meets = tap, max(tap + 1, min(taps, (end - 1) // reach + 1))
        c = conv_backward_data(x_shape[0], x_shape[1], w_shape[0], w_shape[2:], x_shape[2:], dilation, g_strides, left,
                               (first, end), meets)
        requests.append(Request(c, default.RULES[rule], where, dtype, "before"))
    return requests


def _data_columns(width, channels, taps, reach, lanes):
    """`default.columns`, the first vector by itself where it meets fewer taps than the others."""
    edge = lanes if 1 + (lanes - 1) // reach < taps and width >= 3 * lanes else 0
    parts = [(first + edge, end + edge, rule) for first, end, rule in default.columns(width - edge, channels, lanes)]
    return [(0, edge, "spatial"), *parts] if edge else parts


def _direct_weights(x_shape, w_shape, extent, dilation, g_strides, left, dtype, where):
    c = conv_backward_weights(*x_shape[:2], w_shape[0], w_shape[2:], extent, dilation, g_strides, left)
    return Request(c, default.weights_rule(dtype.itemsize), where, dtype, "inside")
