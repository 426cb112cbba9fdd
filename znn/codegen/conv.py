"""The two register tiles that all three passes of a convolution are made of.

`spatial_tile` sums over input channels and kernel taps and writes neighbouring voxels (forward; backward-data is the
same sum over the padded gradient).  `weight_tile` sums over voxels and writes weights (backward-weights).
Both keep every partial sum in a register until it is finished.
"""
from znn.codegen.emit import I64, Emitter


def spatial_tile(target, dtype, nc, nx, kx, dilation, relu, masked):
    """Kernel for `nc` output channels by `nx` vectors of neighbouring x.

    ``y[c, x] = bias[c] + sum_{ci, k, t} w[ci, k, t, c] * x[ci * ci_stride + offsets[k] + t * dilation + x]``

    Arguments of the machine code: x, w, y, bias, n_ci, ci_stride, n_k, offsets, co_stride, width.  The weights are
    packed in the order in which they are read: (ci, k, tap in x, channel of the tile).  With `masked` only the first
    `width` voxels exist, lanes * (nx - 1) < width <= lanes * nx, and no others are read or written.
    """
    e = Emitter(target, dtype, "ppppiiioii")
    x, w, y, bias, n_ci, ci_stride, n_k, offsets, co_stride, width = e.fn.args
    last = e.first_lanes(e.b.sub(width, I64((nx - 1) * e.lanes))) if masked else None
    masks = [None] * (nx - 1) + [last]

    def taps(k, w, row, *acc):
        acc, row = list(acc), e.at(row, e.b.load(e.b.gep(offsets, [k])))
        for t in range(kx):
            xs = [e.load(e.at(row, t * dilation + j * e.lanes), masks[j]) for j in range(nx)]
            for c in range(nc):
                s = e.broadcast(e.at(w, t * nc + c))
                for j in range(nx):
                    acc[c * nx + j] = e.fma(xs[j], s, acc[c * nx + j])
        return [e.at(w, kx * nc), *acc]

    def channel(ci, w, x, *acc):
        w, *acc = e.loop(n_k, [w, *acc], lambda k, w, *acc: taps(k, w, x, *acc))
        return [w, e.at(x, ci_stride), *acc]

    _, _, *acc = e.loop(n_ci, [w, x] + [e.zero()] * (nc * nx), channel)
    for c in range(nc):
        shift, row = e.broadcast(e.at(bias, c)), e.at(y, e.mul(co_stride, c))
        for j in range(nx):
            v = e.b.fadd(acc[c * nx + j], shift)
            e.store(e.relu(v) if relu else v, e.at(row, j * e.lanes), masks[j])
    e.b.ret_void()
    return e.module


def weight_tile(target, dtype, nc, nt):
    """Kernel for `nc` output channels by `nt` (input channel, kernel tap) pairs, summed over a block of voxels.

    ``dw[c * dw_stride + t] += sum_{row, x < width} g[c * g_channel + row * g_row + x]
    * x[offsets[t] + row * x_row + x]``

    Arguments of the machine code: x, g, dw, offsets, n_rows, x_row, g_row, g_channel, width, dw_stride.
    The sum runs in vectors along x; what is left of a row is masked, and the lanes are added up once, at the end.
    """
    e = Emitter(target, dtype, "pppoiiiiii")
    x, g, dw, offsets, n_rows, x_row, g_row, g_channel, width, dw_stride = e.fn.args
    b = e.b
    xs = [e.at(x, b.load(b.gep(offsets, [I64(t)]))) for t in range(nt)]
    gs = [e.at(g, e.mul(g_channel, c)) for c in range(nc)]
    full, rest = b.sdiv(width, I64(e.lanes)), b.srem(width, I64(e.lanes))
    mask = e.first_lanes(rest)

    def products(acc, x_at, g_at, mask=None):
        acc, xv = list(acc), [e.load(e.at(p, x_at), mask) for p in xs]
        for c in range(nc):
            gv = e.load(e.at(gs[c], g_at), mask)
            for t in range(nt):
                acc[c * nt + t] = e.fma(gv, xv[t], acc[c * nt + t])
        return acc

    def row(r, *acc):
        x_at, g_at = b.mul(r, x_row), b.mul(r, g_row)
        here = lambda i, base: b.add(base, e.mul(i, e.lanes))  # noqa: E731
        acc = e.when(b.icmp_signed(">", full, I64(0)), acc, lambda *acc: e.loop(
            full, acc, lambda i, *acc: products(acc, here(i, x_at), here(i, g_at))))
        return e.when(b.icmp_signed(">", rest, I64(0)), acc,
                      lambda *acc: products(acc, here(full, x_at), here(full, g_at), mask))

    acc = e.loop(n_rows, [e.zero()] * (nc * nt), row)
    for c in range(nc):
        for t in range(nt):
            place = e.at(dw, e.mul(dw_stride, c), t)
            b.store(b.fadd(b.load(place), e.sum(acc[c * nt + t])), place)
    b.ret_void()
    return e.module
