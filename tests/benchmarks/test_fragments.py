"""The form in which the peers run our networks computes the same numbers."""
import pytest
import torch

import models
import znn
from benchmarks.fragments import Fragments


@pytest.mark.parametrize("name, options", [("N4", {}), ("VD2D", {}), ("VD2D3D", {"recursive": True})])
def test_fragments_compute_the_dense_network(name, options):
    znn.use_engine("torch")
    try:
        torch.manual_seed(0)
        net = models.build(name, options).double().eval()
        shape = [n + f - 1 for n, f in zip((2, 16, 32), net.field_of_view)]
        x = torch.randn(1, net.in_channels, *shape, dtype=torch.float64)
        with torch.inference_mode():
            torch.testing.assert_close(Fragments(net)(x), net(x), rtol=0, atol=1e-12)
    finally:
        znn.use_engine("znn")
