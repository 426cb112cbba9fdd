"""Who may import whom, read from the sources themselves."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A room may import itself, and these.
MAY_IMPORT = {
    "data": set(),
    "models": {"znn.nn"},
    "znn.loops": set(),
    "znn.codegen": {"znn.loops"},
    "znn.runtime": {"znn.codegen", "znn.loops"},
    "znn.nn": {"znn.runtime", "znn.codegen", "znn.loops"},
    "znn.graph": {"znn.nn", "znn.runtime", "znn.codegen", "znn.loops"},
    "znn.tuner": {"znn.loops", "znn.codegen", "znn.runtime"},
    "znn.pipeline": {"data", "znn.nn", "znn.graph"},
}
PURE = {"znn.loops", "znn.codegen"}           # know nothing of tensors or of microscopy
FOREIGN_TO_PURE = {"torch", "h5py", "skimage"}
OURS = ("data", "models", "znn", "conf", "tests", "train", "infer", "evaluate", "tune")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Full names of everything that a source file imports, at any depth; `from a import b` counts as a.b."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{stem}.{alias.name}", node.lineno) for alias in node.names)


def within(name, room):
    return name == room or name.startswith(room + ".")


def room_of(name):
    return next((room for room in MAY_IMPORT if within(name, room)), None)


def sources(room):
    folder = ROOT.joinpath(*room.split("."))
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


ROOMS = [room for room in MAY_IMPORT if any(path.exists() for path in sources(room))]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_rule_allows(room):
    wrong = []
    for path in sources(room):
        for name, line in imported(path):
            # The package's own __init__ holds the version, which anyone may read.
            allowed = {room, *MAY_IMPORT[room], "znn.__version__"}
            if name.split(".")[0] in OURS and not any(within(name, a) for a in allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(PURE.intersection(ROOMS)))
def test_loops_and_codegen_know_nothing_of_tensors_or_microscopy(room):
    wrong = [f"{path.relative_to(ROOT)}:{line} imports {name}" for path in sources(room)
             for name, line in imported(path) if name.split(".")[0] in FOREIGN_TO_PURE]
    assert not wrong, "\n".join(wrong)


def test_every_source_file_of_ours_is_in_a_room():
    files = [path for top in ("data", "models", "znn") for path in ROOT.joinpath(top).rglob("*.py")]
    stray = [module_name(path) for path in files if room_of(module_name(path)) is None and module_name(path) != "znn"]
    assert not stray


@pytest.mark.parametrize("text, name", [
    ("import models.vd2d\n", "models.vd2d"),
    ("from models import build\n", "models.build"),
    ("def f():\n    from ..nn import Conv3d\n", "znn.nn.Conv3d"),
    ("from . import loss\n", "znn.pipeline.loss"),
])
def test_imports_are_read_as_python_reads_them(text, name, tmp_path, monkeypatch):
    path = tmp_path / "znn" / "pipeline" / "thing.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [found for found, _ in imported(path)] == [name]
