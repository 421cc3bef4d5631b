# Everything runs in a virtual environment of the project's own. PYTHON may name any interpreter from 3.11 on.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench
LOWEST := joblib==1.3.* numba==0.60.* numpy==1.26.* scikit-learn==1.6.* matplotlib==3.8.* pandas==2.1.* polars==1.0.* \
	scipy==1.13.* river==0.21.* pyod==2.0.* h5py==3.10.* pooch==1.8.* tqdm==4.60.* \
	click==8.1.* orjson==3.10.* redis==5.0.* confluent-kafka==2.4.*

# Tests of what is compiled, which also run in plain Python: there a debugger and the coverage see inside the kernels.
PLAIN := tests/property/test_reference.py tests/property/test_online.py $(patsubst %,tests/unit/test_%.py,batch \
	check_forest doubt estimators explain extremes false_alarms forget geometry lanes missing rng streaming \
	worked_example young_streams)

# Editing a kernel can leave its cached callers stale, so the cache is kept apart for each state of the sources.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.cache/numba-$(shell cat src/polyaforest/*.py src/polyaforest/*/*.py | cksum | cut -d' ' -f1)

.PHONY: demo test test-slow test-lowest fuzz lint format bench bench-full bench-pages docs clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

demo: $(READY)  ## find planted anomalies and draw them: demo.png
	@$(BIN)/python examples/demo.py

test: $(READY) lint  ## the whole suite but its slow part, compiled and (a core of it) in plain Python
	$(BIN)/python -m pytest -n 2 -m "not slow"
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -m "not slow" --cov --cov-report=term $(PLAIN)

test-slow: $(READY)  ## the long statistical runs
	$(BIN)/python -m pytest -n 2 -m slow

test-lowest:  ## the tests with the oldest versions of what the package depends on
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --editable ".[dev]" $(LOWEST)
	.venv-lowest/bin/python -m pytest -n 2 -m "not slow"

fuzz: $(READY)  ## hostile records, model files and stores for an hour; SECONDS=60 for less
	$(BIN)/python -m pip install --quiet --editable ".[dev,fuzz]"
	$(BIN)/python tests/fuzz/run.py --seconds $(or $(SECONDS),3600)

lint: $(READY)  ## style, types, and the direction of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY_BENCH)  ## a quick part of every benchmark, in minutes; files and pages stay as they are
	$(BIN)/python benchmarks/speed.py --quick
	$(BIN)/python benchmarks/streaming.py --quick --part throughput
	$(BIN)/python benchmarks/accuracy.py --quick
	$(BIN)/python benchmarks/toy.py --quick
	$(BIN)/python benchmarks/missing.py --quick
	$(BIN)/python benchmarks/density.py --quick
	$(BIN)/python benchmarks/nab.py --quick
	$(BIN)/python benchmarks/explanations.py --quick
	$(BIN)/python benchmarks/cli.py --quick

bench-full: $(READY_BENCH)  ## every table and figure from nothing but the data, for hours; stopped, it goes on where it was
	$(BIN)/python benchmarks/accuracy.py & $(BIN)/python benchmarks/tuning.py & wait
	$(BIN)/python benchmarks/nab.py & $(BIN)/python benchmarks/toy.py & $(BIN)/python benchmarks/density.py & wait
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/missing.py
	$(BIN)/python benchmarks/runtime.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/explanations.py
	$(BIN)/python benchmarks/cli.py

bench-pages: $(READY_BENCH)  ## fill the pages of docs/benchmarks from benchmarks/results/ alone
	$(BIN)/python benchmarks/accuracy.py --render
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/runtime.py --render
	$(BIN)/python benchmarks/tuning.py --render
	$(BIN)/python benchmarks/nab.py --part render
	$(BIN)/python benchmarks/toy.py --render
	$(BIN)/python benchmarks/missing.py --render
	$(BIN)/python benchmarks/density.py --render
	$(BIN)/python benchmarks/explanations.py --render
	$(BIN)/python benchmarks/cli.py --render

docs: $(READY)  ## draw the figures of the docs again
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/make_cli.py
	@$(BIN)/python examples/demo.py docs/images/demo.png

clean:
	rm -rf $(VENV) .venv-lowest .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage demo.png

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

$(READY_BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[dev,bench]"
	@touch $@
