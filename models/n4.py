"""N4: the deep 2D network of Ciresan et al., "Deep neural networks segment neuronal membranes in electron microscopy
images" (NIPS 2012), as Lee et al. (arXiv 1508.04843) trained it densely.  219,290 parameters, sees 1 x 95 x 95."""
from models.errors import choose
from models.table import UNIFORM, Conv, DenseNet, Pool

INIT = {"relu": "xavier", "tanh": UNIFORM}


def table(activation):
    """The rows of N4; "tanh" is the paper's network (uniform +-0.05), "relu" the later release's (xavier)."""
    f, init = activation, choose("activation", activation, INIT)
    return (
        #     name     kernel     maps
        Conv("conv1", (1, 4, 4), 48, f, init),
        Pool("pool1", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv2", (1, 5, 5), 48, f, init),
        Pool("pool2", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv3", (1, 4, 4), 48, f, init),
        Pool("pool3", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv4", (1, 4, 4), 48, f, init),
        Pool("pool4", (1, 2, 2), stride=(1, 2, 2)),
        Conv("conv5", (1, 3, 3), 200, f, init),
        Conv("conv6", (1, 1, 1), 2, None, init),
    )


class N4(DenseNet):
    """N4 in dense form.

    Parameters
    ----------
    activation : {"relu", "tanh"}
        Of every hidden layer; it also chooses the initialisation published with it.
    recursive : bool
        Read an earlier boundary map in [-1, 1] as second channel, through conv1.
    init : str, optional
        One kind of `znn.nn.initialise` for all layers instead.
    """

    def __init__(self, activation="relu", recursive=False, init=None):
        super().__init__(table(activation), in_channels=2 if recursive else 1, init=init)
