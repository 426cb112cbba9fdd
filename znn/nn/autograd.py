"""The generated kernels as differentiable functions; `znn.nn.functional` checks what they are given."""
import functools

import torch

from znn.runtime import conv as conv_kernels
from znn.runtime import dropout as dropout_kernels
from znn.runtime import pool as pool_kernels


class _First(torch.autograd.Function):
    """A gradient as it is, which depends on what follows it in a way that is not computed."""

    @staticmethod
    def forward(ctx, grad, *of):
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError('znn computes first derivatives of convolutions and max filters, found a derivative of one: '
                           'let PyTorch compute the network, by znn.use_engine("torch") before its forward pass, or '
                           'engine=torch for a command')


def _once(backward):
    """A backward pass whose own gradient is refused, where torch's `once_differentiable` may take it for zero."""
    @functools.wraps(backward)
    def first(ctx, grad):
        with torch.no_grad():
            found = backward(ctx, grad)
        if not torch.is_grad_enabled():  # as in any backward pass but one with create_graph=True
            return found
        of = [t for t in (grad, *ctx.saved_tensors) if t.requires_grad]
        return tuple(g if g is None else _First.apply(g, *of) for g in found)

    return first


class Convolution(torch.autograd.Function):
    """The sum of convolutions, bias and activation in one pass forward; the activation's gradient is part of backward.

    Arguments after the activation are x, weight, dilation of each convolution in turn.
    """

    @staticmethod
    def forward(ctx, bias, activation, *terms):
        inputs, dilations = [], terms[2::3]
        bias = None if bias is None else bias.contiguous()
        for x, weight in zip(terms[::3], terms[1::3]):
            inputs += [x.contiguous(), weight.contiguous()]
        y = None
        for i, (x, weight, dilation) in enumerate(zip(inputs[::2], inputs[1::2], dilations)):
            b = bias.numpy() if bias is not None and i == 0 else None
            act = activation if i == len(dilations) - 1 else None
            y = conv_kernels.forward(x.numpy(), weight.numpy(), b, dilation, act, y)
        y = torch.from_numpy(y)
        ctx.save_for_backward(*inputs, *([] if activation is None else [y]))
        ctx.dilations, ctx.activation = dilations, activation
        return y

    @staticmethod
    @_once
    def backward(ctx, grad):
        saved = [t.numpy() for t in ctx.saved_tensors]
        y = saved.pop() if ctx.activation is not None else None
        weights = saved[1::2]
        reach = max(d[2] * (w.shape[4] - 1) for d, w in zip(ctx.dilations, weights))
        grad = grad.contiguous().numpy()
        g, left, db = conv_kernels.prepared(grad, y, ctx.activation, reach)
        found = [torch.from_numpy(db) if ctx.needs_input_grad[0] else None, None]
        for i, (x, w, d) in enumerate(zip(saved[::2], weights, ctx.dilations)):
            g_of = g, left, grad.shape, d
            data, weight = ctx.needs_input_grad[2 + 3 * i:4 + 3 * i]
            found += [torch.from_numpy(conv_kernels.backward_data(x.shape, w, *g_of)) if data else None,
                      torch.from_numpy(conv_kernels.backward_weights(x, w.shape, *g_of)) if weight else None, None]
        return tuple(found)


class Maximum(torch.autograd.Function):
    """A sliding maximum; its gradient goes to the voxel that each maximum came from."""

    @staticmethod
    def forward(ctx, x, window, dilation):
        y, places = pool_kernels.max_filter_with_places(x.contiguous().numpy(), window, dilation)
        ctx.save_for_backward(torch.from_numpy(places))
        ctx.shape, ctx.window, ctx.dilation = tuple(x.shape), window, dilation
        return torch.from_numpy(y)

    @staticmethod
    @_once
    def backward(ctx, grad):
        places, = ctx.saved_tensors
        dx = pool_kernels.max_filter_gradient(ctx.shape, places.numpy(), grad.contiguous().numpy(), ctx.window,
                                              ctx.dilation)
        return torch.from_numpy(dx), None, None


class Dropout(torch.autograd.Function):
    """Backward is forward again, with the same mask: only its seed is kept."""

    @staticmethod
    def forward(ctx, x, seed, p):
        ctx.seed, ctx.p = seed, p
        return torch.from_numpy(dropout_kernels.dropout(x.contiguous().numpy(), seed, p))

    @staticmethod
    def backward(ctx, grad):
        return Dropout.apply(grad, ctx.seed, ctx.p), None, None
