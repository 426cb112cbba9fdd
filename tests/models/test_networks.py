import math
from pathlib import Path

import pytest
import torch

import models
from models.variants import VARIANTS, as_markdown
from znn.nn import Conv3d, ReLU, Tanh, field_of_view, valid_shape

REFERENCE = Path(__file__).parents[2] / "docs" / "networks.md"


def parameters(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.title)
def test_published_parameters_and_field_of_view(variant):
    net = models.build(variant.model, variant.options)
    assert parameters(net) == variant.parameters
    assert net.field_of_view == variant.field_of_view
    assert net.in_channels == (2 if variant.options.get("recursive") else 1)


def test_the_table_of_variants_in_the_documentation_is_the_tested_one():
    assert as_markdown() in REFERENCE.read_text()


def test_output_extent_shrinks_by_the_field_of_view():
    net = models.VD2D3D(recursive=True).eval()
    shape = (7, 91, 96)
    with torch.no_grad():
        logits = net(torch.zeros(1, 2, *shape))
    assert tuple(logits.shape) == (1, 2, 3, 7, 12)
    assert valid_shape(net, shape, in_channels=2) == (3, 7, 12)


def activations(net):
    """Convolution name -> type of its activation, its own or that of the sum it is part of; none for linear ones."""
    layers = dict(net.named_children())
    found = {name: layer.activation
             for name, layer in layers.items() if isinstance(layer, Conv3d)}
    return {name: type(f) for name, f in found.items() if f is not None}


def tanh_layers(net):
    return [name for name, kind in activations(net).items() if kind is Tanh]


def test_tanh_variants_put_tanh_where_it_was_published():
    assert tanh_layers(models.N4(activation="tanh")) == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    assert tanh_layers(models.VD2D(activation="tanh")) == ["conv1c", "conv2b", "conv3b", "conv4b"]
    assert tanh_layers(models.VD2D3D(True, activation="tanh")) == ["conv1c", "conv2b", "conv3b"]
    for net in (models.N4(), models.VD2D(), models.VD2D3D(recursive=True)):
        assert set(activations(net).values()) == {ReLU}


def msra(conv):
    return math.sqrt(2 / (conv.in_channels * math.prod(conv.kernel)))


def xavier(conv):
    return math.sqrt(2 / ((conv.in_channels + conv.out_channels) * math.prod(conv.kernel)))


def uniform(conv):
    return 0.05 / math.sqrt(3)


@pytest.mark.parametrize("net, rule, exceptions", [
    (models.N4("tanh"), uniform, {}),
    (models.N4("relu"), xavier, {}),
    (models.VD2D("relu"), msra, {}),
    (models.VD2D("tanh"), uniform, {"conv1c": xavier, "conv2b": xavier, "conv3b": xavier}),
    (models.VD2D3D(True, "tanh"), msra, {}),
    (models.VD2D("relu", init="xavier"), xavier, {}),
], ids=["N4 tanh", "N4", "VD2D", "VD2D tanh", "VD2D3D tanh", "VD2D xavier"])
def test_initial_weights_have_the_published_spread(net, rule, exceptions):
    for name, conv in net.named_children():
        if not isinstance(conv, Conv3d):
            continue
        n = conv.weight.numel()
        expected = exceptions.get(name, rule)(conv)
        # The spread of n draws scatters by about 1 / sqrt(2 n); six of these never fail by chance.
        assert float(conv.weight.detach().std()) == pytest.approx(expected, rel=6 / math.sqrt(2 * n)), name
        assert abs(float(conv.weight.detach().mean())) < 6 * expected / math.sqrt(n), name
        assert conv.bias is None or not conv.bias.any()


def test_vd2d3d_starts_from_the_first_three_groups_of_vd2d():
    first, second = models.VD2D(), models.VD2D3D(recursive=True)
    fresh = {key: tensor.clone() for key, tensor in second.state_dict().items()}
    torch.nn.init.constant_(first.conv2b.bias, 0.25)
    copied = models.transfer(first.state_dict(), second)
    assert copied == ["conv1a", "conv1b", "conv1c", "conv2a", "conv2b", "conv3a", "conv3b"]
    for key, tensor in second.state_dict().items():
        expected = first.state_dict()[key] if key.split(".")[0] in copied else fresh[key]
        assert torch.equal(tensor, expected), key


def test_transfer_between_strangers_is_an_error():
    with pytest.raises(models.ModelError, match="no layer agrees"):
        models.transfer(models.N4().state_dict(), models.VD2D())


@pytest.mark.parametrize("name, options, message", [
    ("VD3D", {}, "choose one of N4, VD2D, VD2D3D"),
    ("VD2D", {"actvation": "relu"}, "choose one of activation, dropout, init"),
    ("VD2D", {"activation": "gelu"}, "choose one of relu, tanh"),
    ("N4", {"init": "he"}, "msra, xavier"),
])
def test_wrong_choices_list_the_right_ones(name, options, message):
    with pytest.raises(models.ModelError, match=message):
        models.build(name, options)


def test_a_network_of_one_s_own_needs_only_its_table():
    net = models.DenseNet((
        models.Conv("a", (3, 3, 3), 4, "relu"),
        models.Pool("p", (2, 2, 2), stride=(2, 1, 2)),
        models.Conv("b", (2, 3, 1), 2),
    ))
    assert net.b.dilation == (2, 1, 2)
    assert net.field_of_view == field_of_view(net) == (3 + 1 + 2, 3 + 1 + 2, 3 + 1)
