# make demo    train the recursive pair on a synthetic stack, find the boundaries of another one, score and show them
# make test    the test suite
# make lint    ruff
# make clean   remove the environment and the demo
# Each makes its environment first, once.  PYTHON chooses the interpreter, VENV the environment's folder, DEMO the
# demo's; PIP_FLAGS goes to pip.

PYTHON ?= python3
VENV ?= .venv
DEMO ?= runs/demo
PIP_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_FLAGS)
READY := $(VENV)/.installed

.PHONY: demo test lint environment clean
.DELETE_ON_ERROR:

demo: $(DEMO)/boundaries.png
	@echo
	@echo "raw | truth | boundaries:  $(abspath $<)"
	@echo "scores:                    $(abspath $(DEMO)/scores/report.html)"

test: environment
	$(BIN)/python -m pytest

lint: $(VENV)/.linter
	$(BIN)/ruff check .

environment: $(READY)

clean:
	rm -rf $(VENV) $(DEMO) *.egg-info

# The environment.

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.linter: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) ruff
	@touch $@

# The demo, file by file: what is there is kept, and a training that was interrupted goes on.

$(DEMO)/train.h5: | $(READY)
	@mkdir -p $(DEMO)
	$(BIN)/python -m data.phantom $@ --shape 16 256 256 --seed 1 --overwrite

$(DEMO)/unseen.h5: | $(READY)
	@mkdir -p $(DEMO)
	$(BIN)/python -m data.phantom $@ --shape 8 256 256 --seed 2 --overwrite

$(DEMO)/pair/final.safetensors: $(DEMO)/train.h5
	$(BIN)/python train.py $(if $(wildcard $(@D)/config.yaml),resume=$(@D),\
		experiment=demo data.root=$(DEMO) runs=$(DEMO) name=pair)

$(DEMO)/boundary.h5: $(DEMO)/pair/final.safetensors $(DEMO)/unseen.h5
	$(BIN)/python infer.py checkpoint=$< input=$(DEMO)/unseen.h5 output=$@ overwrite=true

$(DEMO)/scores/report.json: $(DEMO)/boundary.h5
	$(BIN)/python evaluate.py prediction=$< truth=$(DEMO)/unseen.h5 output=$(@D) overwrite=true

$(DEMO)/boundaries.png: $(DEMO)/boundary.h5 $(DEMO)/scores/report.json
	$(BIN)/python -m znn.pipeline.picture $(DEMO)/unseen.h5 $< $@ --section 4
