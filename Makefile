# Everything runs in a virtual environment of the project's own. PYTHON may name any interpreter from 3.11 on.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench
READY_DOCS := $(VENV)/.ready-docs
LOCK := requirements-dev.lock
# LOCKED=1 installs the versions of the lock file instead of the newest.
INSTALL := -m pip install --quiet $(if $(LOCKED),--constraint $(LOCK)) --editable
LOWEST := joblib==1.3.* narwhals==1.20.* numba==0.60.* numpy==1.26.* scikit-learn==1.6.* matplotlib==3.8.* pandas==2.2.* polars==1.10.* pyarrow==15.* \
	scipy==1.13.* river==0.21.* pyod==2.0.* h5py==3.10.* pooch==1.8.* tqdm==4.60.* \
	click==8.1.* orjson==3.10.* redis==5.0.* confluent-kafka==2.4.* dask==2025.5.* pyspark==4.1.* \
	apprise==1.8.* fastapi==0.115.* prometheus-client==0.20.* requests==2.31.* tomli-w==1.0.* google-re2==1.1.* holidays==0.40 tomlkit==0.13.* uvicorn==0.32.1 platformdirs==4.0.* \
	fastexcel==0.12.* sqlalchemy==2.0.* psycopg==3.1.* psycopg-binary==3.1.* backports.zstd==1.0.* xlsxwriter==3.1.* \
	cramjam==2.8.* mcp==2.0.* opentelemetry-proto==1.39.* opentelemetry-exporter-otlp-proto-http==1.39.* opentelemetry-sdk==1.39.*

# Tests marked `plain` also run in plain Python: there a debugger and the coverage see inside the kernels.
PLAIN := $(sort $(shell grep -rl --include=*.py 'mark\.plain\b' tests))
# The tests of a file run in one process, so that what they share, such as a session of Spark, is set up once. Some wait
# for other processes, so there is one process more than a small machine has cores.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(SPREAD)

# Processes that tests start would otherwise read every source anew.
unexport PYTHONDONTWRITEBYTECODE

# Compiled kernels stay in the project, whoever runs it.
export POLYAFOREST_CACHE_DIR ?= $(CURDIR)/.cache

.PHONY: setup lock demo serve-demo test test-all test-lowest pytest warm fuzz lint format bench bench-full bench-pages docs dist figures clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

setup: $(READY)  ## the virtual environment, with everything that tests need

# Requirements for all platforms and versions of Python, without addresses, so that the file also works as constraints.
lock: $(BIN)/python  ## refresh requirements-dev.lock, the versions that LOCKED=1 installs
	$(BIN)/python -m pip install --quiet "uv>=0.8"
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --extra dev --extra docs --upgrade --strip-extras \
		--no-annotate --no-emit-package polyaforest --custom-compile-command "make lock" --quiet --output-file $(LOCK)

demo: $(READY)  ## find planted anomalies and draw them: demo.png
	@$(BIN)/python examples/demo.py

serve-demo: $(READY)  ## the live dashboard, with generated streams and planted incidents
	@$(BIN)/polyaforest serve --demo

test: export TEST_SEED ?= 2020
test: $(READY)  ## what every change must pass, in minutes; kernels also in plain Python
	@$(MAKE) --no-print-directory --jobs=2 lint warm
	@$(MAKE) --no-print-directory pytest

test-all: export HYPOTHESIS_PROFILE := full
test-all: lint warm docs  ## everything, for the night: with the slow tests, a new seed, more examples and the site
	@$(MAKE) --no-print-directory pytest WHICH=

WHICH := -m "not slow"
pytest: $(READY)
	$(PYTEST) $(WHICH)
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "plain and not slow" --cov --cov-report=term $(PLAIN)

warm: $(READY)  # compile all kernels once, on all cores, before the processes that run the tests need them
	$(BIN)/polyaforest warmup

test-lowest: export TEST_SEED ?= 2020
test-lowest:  ## the tests with the oldest versions of what the package depends on
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --editable ".[dev]" $(LOWEST)
	.venv-lowest/bin/polyaforest warmup
	.venv-lowest/bin/python -m pytest $(SPREAD) -m "not slow"

fuzz: $(READY)  ## hostile records, model files and stores for an hour; SECONDS=60 for less
	$(BIN)/python -m pip install --quiet --editable ".[dev,fuzz]"
	$(BIN)/python tests/fuzz/run.py --seconds $(or $(SECONDS),3600)

lint: $(READY)  ## style, types, and the direction of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/private_access.py

format: $(READY)  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY_BENCH)  ## a quick part of every benchmark, in minutes; results and pages stay unchanged
	$(BIN)/python -m benchmarks run --all --quick

bench-full: $(READY_BENCH)  ## every table and figure from the data, for hours; resumes where it was stopped
	$(BIN)/python -m benchmarks run --all

bench-pages: $(READY_BENCH)  ## fill the pages of docs/benchmarks from benchmarks/results/ alone
	$(BIN)/python -m benchmarks render --all

docs: $(READY_DOCS)  ## build the site into site/; a broken link or an undocumented public name fails
	$(BIN)/python -m pytest -q tests/project/test_docs.py -k public_name
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(READY)  ## build the source distribution and the wheel into dist/, and check both
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

figures: $(READY)  ## draw the figures of the docs again, and write the page of the command line
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/screens.py
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_settings.py
	$(BIN)/python docs/make_notebook.py

clean:
	rm -rf $(VENV) .venv-lowest .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage demo.png site dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) ".[dev]" --no-compile
	@touch $@

$(READY_DOCS): $(READY)
	$(BIN)/python $(INSTALL) ".[dev,docs]"
	@touch $@

$(READY_BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[dev,bench]"
	@touch $@
