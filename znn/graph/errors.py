"""Failures of compiling a network; each message names the layer, what was expected, what was found, and the mend."""


class GraphError(ValueError):
    """A network cannot be compiled, or a compiled one cannot take what it is given."""


class IllTyped(GraphError):
    """A call's operands do not fit its operator."""


class UnsupportedLayer(GraphError):
    """The network has a layer, or does something between layers, that the compiler does not know."""


class SyntaxMistake(GraphError):
    """A text is not that of a function."""
