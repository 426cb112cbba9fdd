# make demo    train, infer and evaluate on a synthetic stack; ends with the path of a picture
# make test    the test suite
# make lint    ruff
# Each makes its environment first, once.  PYTHON chooses the interpreter, VENV the folder, PIP_FLAGS goes to pip.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
DEMO ?= runs/demo

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_FLAGS)

.PHONY: demo test lint environment clean

demo: environment
	$(BIN)/python demo.py output=$(DEMO)

test: environment
	$(BIN)/python -m pytest

lint: $(VENV)/.linter
	$(BIN)/ruff check .

environment: $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.linter: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) ruff
	@touch $@

clean:
	rm -rf $(VENV) runs outputs *.egg-info
