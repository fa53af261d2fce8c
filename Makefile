# Nothing is assumed but Python 3.11 with pip, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := vaswani-base

.PHONY: demo test slow drill reliability bench clean

demo: $(VENV)/installed
	$(BIN)/zoo build examples/vaswani_base.toml -o $(DEMO)
	$(BIN)/zoo show $(DEMO)
	$(BIN)/python examples/run_model.py $(DEMO)

# One thread for each of the two processes: more would wait for each other. Work stealing keeps the
# tests of a module, which share fixtures, in one of them. The modules are compiled first, as tests
# start hundreds of processes, and Python may be told to keep no compiled modules.
PYTEST := $(BIN)/python -m compileall -q zoo plugins && \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict zoo plugins/zoo_components plugins/zoo_sources
	$(PYTEST) -m "not slow and not drill"

# What `make test` tests on examples, tested on all there is.
slow: $(VENV)/installed-dev
	$(PYTEST) -m slow

drill: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m drill

# Writes docs/reliability.md anew; wants strace.
reliability: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m drills.report

bench: $(VENV)/installed-bench
	$(BIN)/python -W ignore -m benchmarks --write docs/performance.md

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(VENV)/installed $@

$(VENV)/installed-bench: $(VENV)/installed-dev benchmarks/no-deps.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/no-deps.txt
	touch $@

clean:
	rm -rf $(VENV) $(DEMO)
