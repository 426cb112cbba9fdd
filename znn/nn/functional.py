"""Layers as functions, on the engine that `use_engine` chose."""
import torch
from torch.nn import functional as F

from znn.nn import autograd
from znn.nn.checks import check_input, check_parameters, check_probability, check_sum, check_weight, triple
from znn.nn.engine import ours
from znn.runtime import pool as pool_kernels
from znn.runtime.arrays import check_activation


def conv3d(x, weight, bias=None, dilation=(1, 1, 1), activation=None, plus=()):
    """Valid convolution, bias and activation as one operation; the functional form of `Conv3d`.

    Parameters
    ----------
    x : Tensor, (N, in, Z, Y, X)
    weight : Tensor, (out, in, kz, ky, kx)
    bias : Tensor, (out,), optional
    dilation : (int, int, int)
    activation : None, "relu", or (a, b) for a tanh(b s)
    plus : sequence of (x, weight, dilation)
        Further convolutions to the same shape, added before the activation.

    Returns
    -------
    Tensor, (N, out, Z - dilation_z (kz - 1), Y - ..., X - ...)

    Raises
    ------
    ValueError
        When channels, types or devices do not fit, dilation or activation are not as above, an input is smaller than
        the kernel reaches, or the convolutions that are added have different shapes.
    """
    if any(len(term) != 3 for term in plus):
        raise ValueError(f"plus expects triples (x, weight, dilation), found {[len(term) for term in plus]} "
                         "values: give a dilation of 1 for none")
    terms = [(x, weight, triple(dilation)), *((x2, w2, triple(d2)) for x2, w2, d2 in plus)]
    check_activation(activation)
    for number, (x1, w1, d1) in enumerate(terms):
        check_weight(w1)
        check_input("convolution", x1, w1.shape[1], w1.shape[2:], d1)
        check_parameters(x1, w1, None if number else bias)
    check_sum(terms)
    if ours(x):
        return autograd.Convolution.apply(bias, activation, *(a for term in terms for a in term))
    y = F.conv3d(x, weight, bias, dilation=terms[0][2])
    for x2, w2, d2 in terms[1:]:
        y = y + F.conv3d(x2, w2, dilation=d2)
    if activation is None:
        return y
    return F.relu(y) if activation == "relu" else activation[0] * torch.tanh(activation[1] * y)


def max_filter3d(x, window, dilation=(1, 1, 1)):
    """Sliding maximum over a dilated window; the functional form of `MaxFilter3d`.

    Parameters
    ----------
    x : Tensor, (N, C, Z, Y, X)
    window, dilation : int or (int, int, int)

    Returns
    -------
    Tensor, (N, C, Z - dilation_z (window_z - 1), Y - ..., X - ...)

    Raises
    ------
    ValueError
        If an argument is not as above, or x is smaller than the window reaches.
    """
    window, dilation = triple(window), triple(dilation)
    check_input("max filter", x, None, window, dilation)
    if not ours(x):
        return F.max_pool3d(x, window, stride=1, dilation=dilation)
    if x.requires_grad and torch.is_grad_enabled():
        return autograd.Maximum.apply(x, window, dilation)
    return torch.from_numpy(pool_kernels.max_filter(x.detach().contiguous().numpy(), window, dilation))


def dropout(x, p=0.5, training=True):
    """Zero each element independently with probability p, scale the others by 1 / (1 - p); the form of `Dropout`.

    The mask follows from a seed that is drawn from torch's default generator: `torch.manual_seed`, or a generator whose
    state is restored, gives it again bit for bit, whatever the number of threads.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    p : float
        In [0, 1].
    training : bool
        If not, x is returned as it is, as for p = 0.

    Raises
    ------
    ValueError
        If `p` is not a probability.
    """
    check_probability(p)
    if not training or p == 0:
        return x
    if not ours(x):
        return F.dropout(x, p)
    return autograd.Dropout.apply(x, torch.randint(2**63 - 1, ()).item(), p)
