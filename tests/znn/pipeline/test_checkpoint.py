"""Checkpoints give back what was put in, and say what is wrong with those that do not fit."""
import pytest
import torch
from safetensors.torch import save_file

import models
from znn.pipeline.checkpoint import load, load_stages, save
from znn.pipeline.errors import CheckpointError

WHOLE = {"normalisation": {"kind": "section"}, "recursion_scaling": "fixed"}


def saved(path, name="VD2D", options=None):
    network = models.build(name, options)
    tensors = {f"one/{k}": t for k, t in network.state_dict().items()}
    save(path, tensors, WHOLE | {"stages": [{"name": "one", "model": name, "options": options or {}}]})
    return network


def test_tensors_and_header_come_back_the_same(tmp_path):
    base = torch.randn(4, 6, dtype=torch.float64)
    tensors = {"a": base, "transposed": base.T, "part": base[1:, ::2], "n": torch.tensor(3.0), "i": torch.arange(3)}
    meta = {"pi": 0.1 + 0.2, "name": "vd2d3d é", "list": [1, None, {"x": True}]}
    save(tmp_path / "c.safetensors", tensors, meta)
    got, header = load(tmp_path / "c.safetensors")
    assert all(torch.equal(got[k], t) and got[k].dtype == t.dtype for k, t in tensors.items())
    assert {k: header[k] for k in meta} == meta and header["format"] == "znn-checkpoint-1" and "version" in header
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("header", ["{", "[]", "{}"])
def test_a_damaged_header_is_refused(tmp_path, header):
    path = tmp_path / "c.safetensors"
    save_file({"a": torch.ones(1)}, path, {"znn": header})
    with pytest.raises(CheckpointError, match=r"c.safetensors: its header is damaged or not complete"):
        load(path)


def test_an_unknown_network_is_named_with_its_file(tmp_path):
    path = tmp_path / "c.safetensors"
    save(path, {}, WHOLE | {"stages": [{"name": "one", "model": "VD3D", "options": {}}]})
    with pytest.raises(CheckpointError, match=r"c.safetensors: its stage 'one' cannot be built: .*VD2D3D"):
        load_stages(path, models.build)


@pytest.mark.parametrize("change, missing", [
    ({"normalisation": None}, "normalisation"), ({"recursion_scaling": None}, "recursion_scaling"),
    ({"stages": [{"model": "N4"}]}, r"stages\[0\]\.name, stages\[0\]\.options"),
    ({"stages": [3]}, "stages as a list"), ({"stages": "one"}, "stages as a list"),
])
def test_a_header_that_lacks_what_inference_needs_is_refused(tmp_path, change, missing):
    path = tmp_path / "c.safetensors"
    meta = WHOLE | {"stages": [{"name": "one", "model": "N4", "options": {}}]} | change
    save(path, {}, {key: value for key, value in meta.items() if value is not None})
    with pytest.raises(CheckpointError, match=rf"c\.safetensors: its header is not complete: expected {missing}"):
        load_stages(path, models.build)


def test_a_failed_write_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save(path, {"a": torch.ones(2)}, {})

    def full(tensors, file, header):
        file.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("znn.pipeline.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(path, {"a": torch.zeros(2)}, {})
    assert torch.equal(load(path)[0]["a"], torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_networks_come_back_in_eval_mode_and_randomness_is_untouched(tmp_path):
    network = saved(tmp_path / "c.safetensors")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    [(name, again)], _ = load_stages(tmp_path / "c.safetensors", models.build)
    assert torch.equal(torch.rand(1), expected)
    assert name == "one" and not again.training
    assert all(torch.equal(t, again.state_dict()[k]) for k, t in network.state_dict().items())


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "text")
    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="header"):
        load(tmp_path / "other.safetensors")
    save(tmp_path / "old.safetensors", {}, {"format": "znn-checkpoint-0"})
    with pytest.raises(CheckpointError, match="znn-checkpoint-0"):
        load(tmp_path / "old.safetensors")
    save(tmp_path / "empty.safetensors", {}, {"stages": []})
    with pytest.raises(CheckpointError, match="stage"):
        load_stages(tmp_path / "empty.safetensors", models.build)
    good = tmp_path / "c.safetensors"
    saved(good)
    good.write_bytes(good.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="damaged"):
        load(good)


def test_weights_of_another_network_are_refused(tmp_path):
    saved(tmp_path / "c.safetensors")
    with pytest.raises(CheckpointError, match=r"do not fit N4.*conv5.weight \(200, 48, 1, 3, 3\) found"):
        load_stages(tmp_path / "c.safetensors", lambda name, options: models.N4())
