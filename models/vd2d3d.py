"""VD2D3D, 2D below and 3D above: Lee et al., "Recursive training of 2D-3D convolutional networks for neuronal boundary
detection" (NIPS 2015, arXiv 1508.04843).  Recursive: 296,486 parameters; sees 5 x 85 x 85."""
from models.errors import choose
from models.table import ACTIVATIONS, Conv, DenseNet, Drop, Pool

# The stream of the earlier boundary map. The sum has one bias, conv1c's.
MAP_STREAM = (
    #     name        kernel     maps
    Conv("conv1a_r", (1, 3, 3), 24, "relu"),
    Conv("conv1b_r", (1, 3, 3), 24, "relu"),
    Conv("conv1c_r", (1, 2, 2), 24, bias=False),
)


def table(activation, dropout):
    """The rows of VD2D3D; "tanh" (only before a strided pooling of the 2D part) is the paper's, "relu" all ReLU."""
    choose("activation", activation, ACTIVATIONS)
    f = activation
    return (
        #     name      kernel     maps
        Conv("conv1a", (1, 3, 3), 24, "relu"),
        Conv("conv1b", (1, 3, 3), 24, "relu"),
        Conv("conv1c", (1, 2, 2), 24, f),
        Pool("pool1", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv2a", (1, 3, 3), 36, "relu"),
        Conv("conv2b", (1, 3, 3), 36, f),
        Pool("pool2", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv3a", (1, 3, 3), 48, "relu"),
        Conv("conv3b", (1, 3, 3), 48, f),
        Pool("pool3", (2, 2, 2), stride=(1, 2, 2)),
        Conv("conv4a", (2, 3, 3), 60, "relu"),
        Conv("conv4b", (2, 3, 3), 60, "relu"),
        Conv("conv4c", (2, 3, 3), 100, "relu"),
        Drop("drop4", dropout),
        Conv("convx", (1, 1, 1), 2),
    )


class VD2D3D(DenseNet):
    """VD2D3D in dense form.

    Parameters
    ----------
    recursive : bool
        Read an earlier boundary map in [-1, 1] as second channel: its stream is added to the image's at conv1c.
    activation : {"relu", "tanh"}
        Of the last layer before each pooling (all others are ReLU).
    dropout : float
        Probability of dropping a voxel of the last hidden layer while training.
    init : str, optional
        One kind of `znn.nn.initialise` for all layers instead of msra.
    """

    def __init__(self, recursive=False, activation="relu", dropout=0.5, init=None):
        super().__init__(table(activation, dropout), side=MAP_STREAM if recursive else (), joins="conv1c", init=init)
