"""The documentation against the code: its links lead somewhere, its commands compose, its Python runs."""
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from conf.entry import configuration

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
COMMAND = re.compile(r"^python (train|infer|evaluate)\.py ((?:.*\\\n)*.*)$", re.MULTILINE)


def blocks(text, language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


COMMANDS = [(name, arguments) for block in blocks((ROOT / "README.md").read_text())
            for name, arguments in COMMAND.findall(block)]


@pytest.mark.parametrize("name, arguments", COMMANDS, ids=lambda part: part.split()[0])
def test_commands_of_the_readme_compose(name, arguments):
    configuration(name, shlex.split(arguments.replace("\\\n", " ")))


def test_the_readme_shows_every_command():
    assert {name for name, _ in COMMANDS} == {"train", "infer", "evaluate"}


def test_python_of_the_readme_does_what_its_comments_say():
    (code,) = blocks((ROOT / "README.md").read_text(), "python")
    names = {}
    exec(code, names)
    assert names["net"].field_of_view == (5, 85, 85)
    assert tuple(names["logits"].shape) == (1, 2, 3, 44, 44)
    compiled = names["fast"](np.zeros((1, 2, 7, 128, 128), np.float32))
    np.testing.assert_allclose(compiled, names["logits"].detach(), rtol=0, atol=1e-5)


def test_the_example_of_the_engine_prints_what_is_shown(capsys):
    text = (ROOT / "docs" / "engine.md").read_text()
    names = {}
    exec(blocks(text, "python")[0], names)
    shown = capsys.readouterr().out
    assert f"```\n{shown}```" in text
    assert names["assembly"].count("vfmadd231ps") >= 3 * 4 * 6


def test_the_example_of_inference_prints_what_is_shown(capsys):
    text = (ROOT / "docs" / "inference.md").read_text()
    exec(next(code for code in blocks(text, "python") if "class Small" in code), {"__name__": "example"})
    assert f"```\n{capsys.readouterr().out}```" in text
