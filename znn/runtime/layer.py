"""A convolution by its shapes alone, and what it asks for in each pass: to look at schedules without computing."""
from dataclasses import dataclass

from znn.codegen.plan import Epilogue
from znn.runtime import arrays, conv

PASSES = ("forward", "data", "weights")


@dataclass(frozen=True)
class Layer:
    """A convolution as a network makes it.

    Attributes
    ----------
    x_shape : (int, int, int, int, int)
        Of the input, (n, channels, z, y, x).
    w_shape : (int, int, int, int, int)
        Of the weights, (out, in, kz, ky, kx).
    dilation : (int, int, int)
    bias : bool
    activation : None, "relu", or (a, b) for a tanh(b s)
    onto : bool
        Whether it is added to another.
    reach : int or None
        Zeros beside the rows of its gradient: the most that any of the convolutions needs which are added up; what
        this one needs unless given.
    passes : tuple of str
        That are made of it: the first layer of a network has no gradient for its input.
    name : str
    """

    x_shape: tuple
    w_shape: tuple
    dilation: tuple = (1, 1, 1)
    bias: bool = True
    activation: str | tuple | None = None
    onto: bool = False
    reach: int | None = None
    passes: tuple = PASSES
    name: str = ""

    @property
    def extent(self):
        """(z, y, x) of the output."""
        return arrays.valid(self.x_shape, self.w_shape[2:], self.dilation)

    def requests(self, which, dtype, where, points=True):
        """What pass `which` of `PASSES` asks for, without `points` in the direct form; dict of `Request` to how often
        it runs."""
        if which == "forward":
            epilogue = Epilogue(self.onto, self.bias, self.activation)
            return conv.forward_requests(self.x_shape, self.w_shape, self.dilation, epilogue, dtype, where, points)
        ask = {"data": conv.data_requests, "weights": conv.weights_requests}[which]
        reach = self.dilation[2] * (self.w_shape[4] - 1) if self.reach is None else self.reach
        return ask(self.x_shape, self.w_shape, self.dilation, reach, dtype, where, points)
