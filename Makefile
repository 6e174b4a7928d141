# The commands that people type. They work in .venv, which the first of them creates.

.DEFAULT_GOAL := help
.PHONY: help demo lint quick compiled test pythons soak reliability suites zoo bench scale calls format docs dist site screenshots clean

# The first interpreter on the path that is new enough. `make PYTHON=/path/to/python3.12 test` takes another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# The number of processes that run tests: more than cores, because many tests wait for a server or a disk.
WORKERS ?= $(shell "$(PYTHON)" -c 'import os; print(3 * (os.cpu_count() or 1))')

# Tests start many processes. Each would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
HERE := $(CURDIR)
DEMO := build/demo
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

help:
	@echo "make demo     run the example agent, kill it, resume it, and look at its store"
	@echo "make quick    lint, types, layers and the quick tests, which need no server: half a minute"
	@echo "make test     lint, types, layers and all tests: some seven minutes on two cores"
	@echo "make pythons  the quick tests on each Python of this machine, and values that each writes and each reads"
	@echo "make lint     lint, types and layers alone"
	@echo "make soak     all tests in their long form: a value of 2.2 GB, thousands of kills and power cuts; hours"
	@echo "make reliability   the tests with kills, power cuts, faults, damage and many writers, and their figures"
	@echo "make suites   the tests of other projects, on vstate; fetches them once, and counts them in docs/integrations.md"
	@echo "make zoo      store and read values of 21 libraries, which it installs"
	@echo "make bench    measure vstate, other stores and the floor; writes the figures into results.json and the docs"
	@echo "make scale    measure what each operation costs with 1,000 to 1,000,000 threads; an hour, and 12 GB of disk"
	@echo "make calls    count the calls of a commit, a read and others; make calls WAY=commit prints them in their order"
	@echo "make format   format the sources"
	@echo "make docs     write docs/cli.md and docs/modules.md from the code"
	@echo "make dist     build the sdist and the wheel into build/dist, and try the wheel in an empty environment"
	@echo "make site     build the site of the docs, with a reference of every public name, into build/site"
	@echo "make screenshots   take the pictures of the viewer anew; needs Chromium"
	@echo "make clean    remove .venv, build/ and the caches"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "vstate needs Python 3.11 or newer; found none. Install one, or type: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "vstate needs Python 3.11 or newer, which $(PYTHON) is not" >&2; exit 1; }
	@echo "Creating .venv with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; echo "could not create .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

.venv/installed-runtime: pyproject.toml | $(BIN)/python
	@echo "Installing vstate"
	@$(PIP) install --editable '.[view]'
	@touch $@

.venv/installed-bench: pyproject.toml | $(BIN)/python
	@echo "Installing vstate and the packages of the benchmarks"
	@$(PIP) install --editable '.[bench]'
	@touch $@

.venv/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing vstate and the packages of its tests"
	@$(PIP) install --editable '.[dev]'
	@touch $@ .venv/installed-runtime .venv/installed-bench

AGENT := docs/examples/research_agent.py
RUN_AGENT = "$(abspath $(BIN))/python" "$(HERE)/$(AGENT)" --every 5
VSTATE = cd $(DEMO) && "$(abspath $(BIN))/vstate"

# The shell reports a process that SIGKILL ended with the status 128 + 9.
demo: .venv/installed-runtime
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo "An agent reads the sources of Python. Each of its calls is one commit in $(DEMO)/.vstate."
	@echo && echo '# Start it. In the middle of call 23 it sends itself SIGKILL, which no program can handle.' && echo '$$ python $(AGENT) --every 5 --crash-at 23'
	@cd $(DEMO) && { status=0; $(RUN_AGENT) --crash-at 23 2>&1 || status=$$?; \
		test $$status -eq 137 || { echo "expected the agent to be killed (status 137), got status $$status" >&2; exit 1; }; \
		echo "  killed by SIGKILL (status 137 = 128 + 9), half-way through call 23"; }
	@echo && echo '# The store has the 22 calls before, each one whole, and nothing of call 23.' && echo '$$ vstate log --oneline -n 2'
	@$(VSTATE) log --oneline -n 2
	@echo && echo '# Start it again. It goes on with call 23. Then it forks its past: another policy from call 29 on.' && echo '$$ python $(AGENT) --every 5'
	@cd $(DEMO) && $(RUN_AGENT)
	@echo && echo '# What differs inside one key? The command reads the plan without running code of the agent.' && echo '$$ vstate diff main what-if --key plan | head -n 8'
	@$(VSTATE) diff main what-if --key plan | head -n 8
	@printf '\n# Look at all of it in a browser:\n$$ %s/vstate -s $(DEMO)/.vstate view\n' "$(BIN)"
	@printf '\n# Next, an agent that edits files and pays once. The first start is killed as it pays, the second goes on:\n'
	@printf '$$ mkdir -p build/coding && cd build/coding && for start in 1 2; do %s/python %s/docs/examples/coding_agent.py --crash; done\n' "$(abspath $(BIN))" "$(HERE)"

lint: .venv/installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# The core of each layer. Collecting the other modules would take as long as running a third of these tests.
QUICK := tests/objects tests/values $(addprefix tests/kv/test_,contract.py dict_store.py disk.py wrappers.py url.py) \
	tests/repo tests/state tests/cli $(addprefix tests/test_,errors.py tasks.py plain_functions.py)

quick: lint
	@$(BIN)/pytest -n auto -q -m "not slow" --durations=5 --durations-min=1 $(QUICK)
	@echo "Left out: patterns, sessions, managers, aio, the stores in front of others, and tests marked slow, which use"
	@echo "servers or other processes or take long. make test runs all tests."

# Each process of pytest would compile the tests anew. One does it for all, while mypy has another core.
compiled: .venv/installed-dev
	@-$(BIN)/pytest --collect-only -qq >/dev/null 2>&1

test: .venv/installed-dev
	@$(MAKE) --no-print-directory -j2 lint compiled
	@$(BIN)/pytest -n $(WORKERS)

# Each Python gets a venv in build/pythons.
pythons: .venv/installed-dev
	@$(BIN)/python tests/pythons.py -n $(WORKERS) $(QUICK)

soak: .venv/installed-dev
	@VSTATE_SOAK=1 VSTATE_ZOO=1 $(BIN)/pytest -n $(WORKERS)

calls: .venv/installed-dev
	@$(BIN)/python tests/test_calls.py $(WAY)

# VSTATE_SOAK=1 make reliability: the long variants of these tests.
reliability: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python tests/reliability/report.py -n $(WORKERS)

# The libraries take about 1 GB. `make test` has the usual ones, and names the others as skipped.
zoo: .venv/installed-dev
	@$(PIP) install --editable '.[zoo]'
	@VSTATE_ZOO=1 $(BIN)/pytest -n $(WORKERS) tests/zoo

# make suites SUITES='strands': only these. With a new outcome it fails, and the page keeps the row.
suites: .venv/installed-dev
	@$(BIN)/python tests/suites/run.py --page docs/integrations.md $(SUITES)

# make bench ROWS='import vstate|read a key': only rows whose name matches; changes no page.
bench: .venv/installed-bench
	@$(BIN)/python -m benchmarks $(if $(ROWS),--rows '$(ROWS)',--page README.md --page docs/benchmarks.md)
	@$(if $(ROWS),,$(BIN)/python -m benchmarks.deltas --page docs/integrations.md)

# make scale SIZES=1000,10000: only these sizes; changes no page.
scale: .venv/installed-bench
	@$(BIN)/python -m benchmarks.scale $(if $(SIZES),--sizes $(SIZES) --json build/scale.json,--page docs/benchmarks.md --picture docs/images/scale.svg)
	@$(if $(SIZES),,$(BIN)/python -m benchmarks.scale.service --page docs/benchmarks.md)

format: .venv/installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: .venv/installed-dev
	@$(BIN)/python docs/generate_cli.py
	@$(BIN)/python docs/generate_modules.py

# The wheel is installed into an empty environment, and runs the programs of the README from there.
dist: .venv/installed-dev
	@rm -rf build/dist build/wheel && $(PIP) install --quiet build
	@$(BIN)/python -m build --outdir build/dist . > build/dist.log 2>&1 || { cat build/dist.log >&2; exit 1; }
	@"$(PYTHON)" -m venv build/wheel && build/wheel/bin/python -m pip --quiet --disable-pip-version-check install build/dist/*.whl
	@$(BIN)/python tests/two_minutes.py build/wheel/bin/python
	@ls -l build/dist

site: .venv/installed-runtime
	@$(PIP) install --editable '.[site]'
	@$(BIN)/python docs/build_site.py

screenshots: .venv/installed-dev
	@$(BIN)/python docs/screenshots.py

clean:
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
