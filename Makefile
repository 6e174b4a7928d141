# The commands people type. Everything happens in .venv, which is made on first use.

.DEFAULT_GOAL := help
.PHONY: help demo lint quick test soak reliability bench format docs clean

# The first interpreter on the path that is new enough; `make PYTHON=/path/to/python3.12 test` names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# How many processes the tests use.
WORKERS ?= auto

BIN := .venv/bin
HERE := $(CURDIR)
DEMO := build/demo
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

help:
	@echo "make demo     run the example agent, kill it, resume it, and look at what it left"
	@echo "make quick    lint, check types and layers, run the tests that need no server and no time: half a minute"
	@echo "make test     lint, check types and layers, run the tests: some eight minutes on two cores"
	@echo "make lint     lint, check types and layers"
	@echo "make soak     the tests with their long variants: a value of 1 GB, thousands of kills and power cuts; hours"
	@echo "make reliability   kills, power cuts, faults, damage, many writers: run those tests, print their figures"
	@echo "make bench    measure vstate, kvgit and the floor; writes benchmarks/results.json"
	@echo "make format   rewrite the sources in the house style"
	@echo "make docs     write docs/cli.md anew from the commands"
	@echo "make clean    remove .venv, build/ and the caches"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "vstate needs Python 3.11 or newer; found none. Install one, or say make PYTHON=/path/to/it" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "vstate needs Python 3.11 or newer, which $(PYTHON) is not" >&2; exit 1; }
	@echo "Creating .venv with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; echo "could not create .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

.venv/installed-runtime: pyproject.toml | $(BIN)/python
	@echo "Installing vstate"
	@$(PIP) install --editable .
	@touch $@

.venv/installed-bench: pyproject.toml | $(BIN)/python
	@echo "Installing vstate and what the benchmarks compare it with"
	@$(PIP) install --editable '.[bench]'
	@touch $@

.venv/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing vstate and what its tests need"
	@$(PIP) install --editable '.[dev]'
	@touch $@ .venv/installed-runtime .venv/installed-bench

# The status of a process that SIGKILL ended is 128 + 9, as the shell reports it.
demo: .venv/installed-runtime
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo "The demo works in $(HERE)/$(DEMO)"
	@echo && echo '$$ python docs/examples/research_agent.py --crash-at 23'
	@cd $(DEMO) && { status=0; "$(HERE)/$(BIN)/python" "$(HERE)/docs/examples/research_agent.py" --crash-at 23 || status=$$?; \
		test $$status -eq 137 || { echo "expected the agent to be killed (status 137), got status $$status" >&2; exit 1; }; }
	@echo && echo '$$ python docs/examples/research_agent.py'
	@cd $(DEMO) && "$(HERE)/$(BIN)/python" "$(HERE)/docs/examples/research_agent.py"
	@echo && echo '$$ vstate log -n 8'
	@cd $(DEMO) && "$(HERE)/$(BIN)/vstate" log -n 8
	@echo && echo '$$ vstate diff --stat main what-if'
	@cd $(DEMO) && "$(HERE)/$(BIN)/vstate" diff --stat main what-if
	@echo && echo '$$ vstate show HEAD findings'
	@cd $(DEMO) && "$(HERE)/$(BIN)/vstate" show HEAD findings
	@echo && echo "Look further: cd $(DEMO) && ../../$(BIN)/vstate --help"

lint: .venv/installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

quick: lint
	@$(BIN)/pytest -n $(WORKERS) -q -m "not slow"
	@echo "make quick left out the tests marked slow: servers, processes, kills, long random runs. make test runs all."

test: lint
	@$(BIN)/pytest -n $(WORKERS)

soak: .venv/installed-dev
	@VSTATE_SOAK=1 $(BIN)/pytest -n $(WORKERS)

# VSTATE_SOAK=1 make reliability: their long variants.
reliability: .venv/installed-dev
	@$(BIN)/python tests/reliability/report.py -n $(WORKERS)

bench: .venv/installed-bench
	@$(BIN)/python -m benchmarks

format: .venv/installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: .venv/installed-dev
	@$(BIN)/python docs/generate_cli.py

clean:
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
