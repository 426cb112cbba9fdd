"""VD2D, "very deep 2D": Lee et al., "Recursive training of 2D-3D convolutional networks for neuronal boundary
detection" (NIPS 2015, arXiv 1508.04843).  230,714 parameters, sees 1 x 109 x 109."""
from models.errors import choose
from models.table import UNIFORM, Conv, DenseNet, Drop, Pool

# (of most layers, of the last layer before pooling)
INIT = {"relu": ("msra", "msra"), "tanh": (UNIFORM, "xavier")}


def table(activation, dropout):
    """The rows of VD2D; "tanh" (only before a pooling) is the paper's network, "relu" the all-ReLU release."""
    f, (init, last) = activation, choose("activation", activation, INIT)
    return (
        #     name      kernel     maps
        Conv("conv1a", (1, 3, 3), 24, "relu", init),
        Conv("conv1b", (1, 3, 3), 24, "relu", init),
        Conv("conv1c", (1, 2, 2), 24, f, last),
        Pool("pool1", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv2a", (1, 3, 3), 36, "relu", init),
        Conv("conv2b", (1, 3, 3), 36, f, last),
        Pool("pool2", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv3a", (1, 3, 3), 48, "relu", init),
        Conv("conv3b", (1, 3, 3), 48, f, last),
        Pool("pool3", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv4a", (1, 3, 3), 60, "relu", init),
        Conv("conv4b", (1, 3, 3), 60, f, init),
        Pool("pool4", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv5", (1, 3, 3), 200, "relu", init),
        Drop("drop5", dropout),
        Conv("convx", (1, 1, 1), 2, None, init),
    )


class VD2D(DenseNet):
    """VD2D in dense form.

    Parameters
    ----------
    activation : {"relu", "tanh"}
        Of the last layer before each pooling (all others are ReLU); it also chooses the initialisation.
    dropout : float
        Probability of dropping a voxel of the last hidden layer while training.
    init : str, optional
        One kind of `znn.nn.initialise` for all layers instead.
    """

    def __init__(self, activation="relu", dropout=0.5, init=None):
        super().__init__(table(activation, dropout), init=init)
