# Everything a developer types. `make help` lists it; CI calls nothing but these.
# Needed: make and a Python >= 3.11. Not needed: root, a Redis server, node.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
# Touched when the virtual environment holds what pyproject.toml asks for.
READY := $(VENV)/.ready
SOURCES := src tests bench examples scripts
# The tests start hundreds of processes: without bytecode on disk each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# `make install PYTHON=/path/to/python3.12` overrides the search.
PYTHON ?=
# `make test PYTEST_ARGS='-k lease -x'` narrows a run, `BENCH_ARGS` a benchmark.
PYTEST_ARGS ?=
BENCH_ARGS ?=

.PHONY: help install dev test check format chaos bench docs build clean

help: ## List all targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## Create .venv/ with the project (editable) and its development tools

$(READY): pyproject.toml scripts/make_venv.sh
	@PYTHON='$(PYTHON)' scripts/make_venv.sh $(VENV)
	@touch $@

dev: install ## Start an embedded store and a worker on the example, here in the terminal
	@$(BIN)/weft dev examples.quickstart:app

test: install ## Run the tests (PYTEST_ARGS='-k lease -x' narrows them)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: install ## Lint, format, types, import rules, sizes, Lua headers, fresh references
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	MYPYPATH=scripts:tests/docs $(BIN)/mypy scripts tests/docs
	$(BIN)/lint-imports
	$(BIN)/python scripts/size_report.py
	$(BIN)/python -c 'from weft.store.scripts import load_all; print(len(load_all()), "Lua headers load")'
	$(BIN)/python scripts/generate_docs.py --check

format: install ## Rewrite the code in the house format
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

chaos: install ## Run every fault scenario in full (minutes)
	$(BIN)/python -m pytest -m chaos $(PYTEST_ARGS)

bench: install ## Measure Weft and its peers on this machine, into docs/benchmarks.md
	$(BIN)/python -m bench --write docs/benchmarks.md $(BENCH_ARGS)

docs: install ## Write docs/reference/ anew from the code
	$(BIN)/python scripts/generate_docs.py

build: install ## Make the wheel and the source distribution in dist/
	rm -rf dist
	$(BIN)/python -m build

clean: ## Remove what the other targets made; .weft/ (data of the embedded store) stays
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
