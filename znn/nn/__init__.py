"""What a network's author touches: dense (valid, stride-1) layers on volumes, as torch modules.

Every layer takes and returns ``(N, C, Z, Y, X)`` float32 tensors.  Convolution is torch's cross-correlation with
torch's weight layout ``(out, in, z, y, x)``, so a ``state_dict`` moves between the two engines unchanged.
Pooling never strides: `MaxFilter3d` slides its window over every voxel, and what follows is dilated instead
("filter rarefaction"), which gives a dense output with the weights of the strided network.
"""
from znn.nn.checks import triple
from znn.nn.engine import ENGINES, current_engine, memory_at_most, use_engine
from znn.nn.functional import conv3d, dropout, max_filter3d
from znn.nn.modules import Conv3d, Dropout, MaxFilter3d, ReLU, Tanh, initialise
from znn.nn.shapes import field_of_view, layers, valid_shape

__all__ = ["ENGINES", "Conv3d", "Dropout", "MaxFilter3d", "ReLU", "Tanh", "conv3d", "current_engine", "dropout",
           "field_of_view", "initialise", "layers", "max_filter3d", "memory_at_most", "triple", "use_engine",
           "valid_shape"]
