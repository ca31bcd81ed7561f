# Every target sets up what it needs: a virtual environment in .venv from the hashed lock files in requirements/.
# PYTHON chooses the interpreter (3.11 or newer); DEMO_HOME the data folder of `make demo`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
DEMO_HOME ?= $(CURDIR)/.demo
BIN := .venv/bin
READY := .stamps/dev

# uv does not read pip's settings: hand the folder of local wheels on (pip separates by space, uv by comma).
comma := ,
empty :=
space := $(empty) $(empty)
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
endif

.PHONY: help
help: ## say what the targets do
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "make %-14s %s\n", $$1, $$2}'

# Installed: exactly the locked versions, then this checkout on top, editable.
$(READY): requirements/bootstrap.lock requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Airyard needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu the package python3-venv brings it." >&2; exit 2; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.lock
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable .
	@mkdir -p $(@D) && touch $@

# The demo has a data folder of its own and looks at no other server: it stops and cancels only what is its own.
.PHONY: demo
demo: export AIRYARD_HOME := $(DEMO_HOME)
demo: $(READY) ## start a server with simulated GPUs, train on two nodes, follow the run to its end
	@unset AIRYARD_HOST AIRYARD_TOKEN; \
	trap '$(BIN)/airyard down --cancel-runs || true' EXIT; \
	$(BIN)/airyard up --simulate; \
	$(BIN)/airyard run -f examples/digits-ddp/workload.yaml --watch

# Most stories wait rather than compute: three at a time keep two cores busy. A file's tests stay together.
WORKERS ?= 3
.PHONY: test
test: lint types imports ## check, then the whole test suite, WORKERS=3 files at a time
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --durations 10

N ?= 20
.PHONY: soak
soak: $(READY) ## the failure stories over and over, as root: N=20 times partitions and killed servers, the rest N/4
	$(BIN)/python tests/soak.py --count $(N)

# Tests say what they miss and are skipped without it; no daemon is left running by the installation.
.PHONY: packages
packages: ## on Debian, as root: install the daemons that some tests start (requirements/debian.txt)
	@wanted=$$(grep -v '^#' requirements/debian.txt | while read -r name; do \
	  dpkg-query -W -f='$${db:Status-Status}' "$$name" 2>/dev/null | grep -qx installed || echo "$$name"; done); \
	if [ -n "$$wanted" ]; then \
	  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	  apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends $$wanted > /dev/null; fi

.PHONY: check
check: lint types imports architecture ## style, types, import direction, tidiness: everything fast

.PHONY: lint
lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check --quiet --output-format concise .
	$(BIN)/ruff format --check --quiet . || { echo "run: ruff format ."; $(BIN)/ruff format --check .; exit 1; }

.PHONY: types
types: $(READY) ## mypy, strict, on src
	$(BIN)/mypy

.PHONY: imports
imports: $(READY) ## the direction of imports between the rooms
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }; echo "$$out" | tail -1

.PHONY: architecture
architecture: $(READY) ## tests of the shape: sizes, names, import cost, documents
	$(BIN)/pytest tests/architecture

.PHONY: bench
bench: $(READY) ## every benchmark, or some: make bench ONLY="journal launch"
	$(BIN)/python -m benchmarks $(ONLY)

# The lock files name versions and hashes only: no host, no path of a machine.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-emit-index-url --no-emit-find-links $(LOCK_FLAGS)

.PHONY: lock
lock: $(READY) ## compile requirements/*.lock anew; LOCK_FLAGS=--upgrade takes newer releases
	$(COMPILE) pyproject.toml --extra server --extra postgres --extra ray --group dev --output-file requirements/dev.lock
	$(COMPILE) pyproject.toml --extra server --constraints requirements/dev.lock --output-file requirements/server.lock
	$(COMPILE) pyproject.toml --constraints requirements/dev.lock --output-file requirements/client.lock
	$(COMPILE) pyproject.toml --extra server --extra ray --constraints requirements/dev.lock \
	  --output-file src/airyard/node/remote/node.lock
	$(COMPILE) requirements/bootstrap.in --constraints requirements/dev.lock --output-file requirements/bootstrap.lock

.PHONY: clean
clean: ## remove the environment, caches and the demo's data (stops the demo's server first)
	@if [ -d .demo ] && [ -x $(BIN)/airyard ]; then \
	  env -u AIRYARD_HOST -u AIRYARD_TOKEN AIRYARD_HOME=$(CURDIR)/.demo $(BIN)/airyard down --cancel-runs || true; fi
	rm -rf .venv .stamps .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
