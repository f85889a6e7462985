# Every target sets up what it needs: you need python3 (>= 3.11), make and a network.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
DOCS_READY := $(VENV)/.docs-ready
INTEGRATIONS := .venv-integrations
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# CI sets HASHED=1: everything but torch is installed by its sha256, into an empty environment. hashes.txt says how, and why.
ifdef HASHED
READY  := $(VENV)/.ready-hashed
CLEAR  := --clear
NOTHING_ELSE := --no-index --no-build-isolation
endif

.PHONY: demo test soak lint format docs bench package audit hashes integrations clean help

help:             ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 12

demo: $(BENCH_READY)  ## the paper's Figure 2, and an equation that SOAP and the whitened NorMuon solve, in a page to open; under three minutes
	@rm -rf out/demo
	@$(BIN)/ggt reproduce S1 --seeds 5 --out out/demo/S1
	@$(BIN)/ggt reproduce S2 --seeds 2 --out out/demo/S2
	@$(BIN)/python benchmarks/solve_convection.py --seeds 2 --out out/demo/PINN
	@$(BIN)/ggt report out/demo

test: $(READY)    ## the quick test suite
	@$(BIN)/python -m pytest -q -n auto

soak: $(READY)    ## the long checks as well
	@$(BIN)/python -m pytest -q -n auto -m "soak or not soak"

lint: $(READY)    ## ruff and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY)  ## let ruff rewrite the files
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: $(DOCS_READY)  ## the documentation site, with every example run; warnings are errors
	@$(BIN)/python -m sphinx -b html -W --keep-going -q -d out/doctrees docs out/site
	@echo "Open out/site/index.html"

bench: $(BENCH_READY)  ## CPU cost of a step, beside the bare products and torchzero
	@rm -rf out/cpu
	@$(BIN)/ggt bench --what cpu --out out/cpu

package: $(READY) ## build the wheel and the source archive, and use the wheel in empty environments
	@$(BIN)/python tools/check_package.py

audit: $(READY)   ## is what is installed what was pinned, and does an advisory name it? The second needs a network
	@$(BIN)/python tools/check_installed.py
	@$(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit \
	  || { echo "No advisory was looked for: pip-audit could not be installed."; exit 1; }
	@$(VENV)/audit/bin/python tools/look_for_advisories.py

hashes: $(READY)  ## write hashes.txt anew, after a change of constraints.txt; it needs a network
	@$(BIN)/python tools/write_hashes.py

integrations: $(INTEGRATIONS)/.ready  ## the tests with Lightning, Trainer, Accelerate and others, in an environment of their own
	@$(INTEGRATIONS)/bin/python -m pytest -q tests/integrations

$(READY): pyproject.toml constraints.txt $(if $(HASHED),hashes.txt) native/pyproject.toml native/src/torch_ggt_cpu/passes.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torch-ggt needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(CLEAR) $(VENV)
ifdef HASHED
	$(INSTALL) --no-deps --only-binary :all: --require-hashes -r hashes.txt
	$(INSTALL) --no-deps -c constraints.txt torch
endif
	$(INSTALL) $(NOTHING_ELSE) -c constraints.txt -e ".[dev]"
	@$(INSTALL) $(NOTHING_ELSE) ./native \
	  || echo "The compiled passes of native/ are left out, and their tests are skipped: they need a C compiler."
	@$(BIN)/python -m pip check
	@touch $@

$(BENCH_READY): $(READY)
	$(INSTALL) $(NOTHING_ELSE) -c constraints.txt -e ".[dev,bench]"
	@touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) $(NOTHING_ELSE) -c constraints.txt -e ".[dev,docs]"
	@touch $@

$(INTEGRATIONS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[integrations]"
	@$(INTEGRATIONS)/bin/python -m pip check
	@touch $@

clean:            ## remove the environment and everything generated
	rm -rf $(VENV) $(INTEGRATIONS) native/src/torch_ggt_cpu/passes.so build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis out docs/gallery docs/sg_execution_times.rst
