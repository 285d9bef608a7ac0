# The main commands. On a fresh machine with python3, venv and make, `make run` and `make test` install everything else.

PYTHON ?= python3
OUT ?= out
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a thousand processes; without bytecode, each of them would compile egmctl again.
unexport PYTHONDONTWRITEBYTECODE

# Bindings of CUDA 13 need driver 580 or newer. Without a driver, any version works, so the newest is used.
DRIVER := $(shell grep -m1 -oE ' [0-9]{3,}\.[0-9]' /proc/driver/nvidia/version 2>/dev/null | head -1 | cut -d. -f1)
EXTRA := $(shell [ $(or $(DRIVER),999) -ge 580 ] && echo cu13 || echo cu12)
INSTALLED := $(VENV)/installed-$(EXTRA)
TOOLS := $(VENV)/tools-$(EXTRA)
# Twice the two cores of CI: tests that start processes wait for them, and 4 workers take 0.91 of the time of 3.
WORKERS ?= 4
GENERATED_BY_TESTS = $(shell grep -rlE "EGMCTL_UPDATE_README|from tests.golden import" tests --include="test_*.py")

# The machine that `make run` shows if there is no driver: a recorded one if one ships, else a modelled one.
RECORDED := $(basename $(notdir $(wildcard profiles/machines/hgx-h200x*.json)))
MACHINE ?= $(or $(lastword $(RECORDED)),gb200-tray)

.DEFAULT_GOAL := help
.PHONY: help run test test-unit fuzz regenerate test-gpu test-ucx lint format docs wheel dist prove clean

help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED) ## Show this node's topology; without a driver, a recorded machine's
	@$(BIN)/egmctl topo || { code=$$?; [ $$code -eq 3 ] || exit $$code; \
	  printf '\nNo NVIDIA GPU could be read here. What follows is %s, a machine that ships with egmctl:\n' '$(MACHINE)'; \
	  printf '$$ egmctl topo --machine %s\n\n' '$(MACHINE)'; $(BIN)/egmctl topo --machine '$(MACHINE)'; }

# Tests make and delete tens of thousands of files, which takes a fifth of their time on a disk: in memory where 4 GiB are
# free and programs may run. Tests run programs as other users, who have to reach the files.
FILES_FIT_IN_MEMORY = [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4194304 ] 2>/dev/null && \
  ! grep -q ' /dev/shm .*noexec' /proc/mounts
test: $(TOOLS) lint ## Check style, types and words, and run every test that needs no GPU, with few random examples
	if $(FILES_FIT_IN_MEMORY); then \
	  TMPDIR=$$(mktemp -d /dev/shm/egmctl-XXXXXX); chmod 755 "$$TMPDIR"; export TMPDIR; \
	  trap 'rm -rf "$$TMPDIR"' EXIT INT TERM; \
	fi; \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not fuzz' $(PYTEST_ARGS)

test-unit: $(TOOLS) ## Run the tests that start no process: under a minute
	$(BIN)/pytest -n 2 --dist worksteal -m unit $(PYTEST_ARGS)

fuzz: $(TOOLS) ## Run the random tests for long: 10,000 generated machines, documents, options, and more examples of each property
	$(BIN)/pytest -n 2 --dist worksteal -m fuzz $(PYTEST_ARGS)
	EGMCTL_TEST_ROUNDS=300 EGMCTL_EXAMPLES=300 $(BIN)/pytest -n 2 --dist worksteal tests/fuzz \
	  $(shell grep -rl "from hypothesis" tests --include="test_*.py") $(PYTEST_ARGS)

# All at once: in a fresh clone mypy takes one core 12 seconds. What each of them prints stands together.
LINTERS := lint-style lint-format lint-types lint-imports lint-spelling lint-words
lint: $(TOOLS) ## Check style, types, import directions, spelling and words
	@$(MAKE) --no-print-directory --jobs=$(words $(LINTERS)) --output-sync=target $(LINTERS)

.PHONY: $(LINTERS)
$(LINTERS): $(TOOLS)
lint-style:
	$(BIN)/ruff check .
lint-format:
	$(BIN)/ruff format --check .
lint-types:
	$(BIN)/mypy
lint-imports:
	$(BIN)/lint-imports --no-cache
lint-spelling:
	$(BIN)/typos
lint-words:
	$(BIN)/python tools/terms.py

# Files that a tool in tools/ writes, then output of commands: goldens, frozen answers, README examples and pictures.
GENERATORS := assemble make_schemas bench_reference doctor_reference man_page
regenerate: $(TOOLS) ## Regenerate all generated files; review the diff before you commit it
	set -e; for tool in $(GENERATORS); do PYTHONPATH=. $(BIN)/python tools/$$tool.py; done
	EGMCTL_WRITE_GOLDEN=1 EGMCTL_UPDATE_README=1 $(BIN)/pytest -q -n 2 --dist loadfile $(GENERATED_BY_TESTS)

format: $(TOOLS) ## Format the source
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-gpu: ## On a GPU machine: run the GPU tests and the measurements with the installed python3; results in $(OUT); PARTS: names of parts
	PYTHON='$(PYTHON)' sh tests/gpu/measure.sh '$(OUT)' $(PARTS)

test-ucx: $(TOOLS) ## Install UCX (54 MB) and test messages over it between real processes on this machine
	$(BIN)/python -m pip install --quiet --group ucx
	$(BIN)/pytest tests/rdma

docs: $(TOOLS) ## Build the guide as a site into out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(TOOLS) ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

dist: $(TOOLS) ## Build the release files into dist/: a folder with its own Python, deb, rpm (DIST_ARGS=--help)
	$(BIN)/python -m pip install --quiet --group dist
	$(BIN)/python tools/make_dist.py $(DIST_ARGS)

prove: $(TOOLS) ## As root: install and run the files of make dist in clean Debian and Ubuntu systems (PROVE_ARGS=--help)
	$(BIN)/python tools/prove_dist.py $(PROVE_ARGS)

clean: ## Remove the files that the other targets created
	rm -rf $(VENV) $(OUT) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA)]'
	@touch $@

$(TOOLS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@
