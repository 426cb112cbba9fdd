"""An exponential moving average of the weights over training, with which a network is judged and kept.

Weights that follow noisy gradients of one patch a step jitter about a better point; their average lies nearer to it
(Polyak and Juditsky 1992, SIAM J. Control Optim. 30:838).
"""
import torch


class WeightAverage:
    """``average += (1 - d) (weights - average)`` after every step.

    The decay d rises to `decay` as (1 + t) / (10 + t) with the step t, so that the random start is forgotten at once.

    Parameters
    ----------
    decay : float
        Between 0 and 1; the average reaches back about 1 / (1 - decay) steps.

    Attributes
    ----------
    state : dict of str to Tensor
        The averaged weights; empty before the first step.
    """

    def __init__(self, decay):
        self.decay, self.state = decay, {}

    @torch.no_grad()
    def update(self, weights, step):
        """Take in the weights, a state dict of floating-point tensors, after so many steps."""
        if not self.state:
            self.state = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, tensor in weights.items():
            self.state[name].lerp_(tensor.detach(), weight)
