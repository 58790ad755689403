# `make run` and `make test` need only Python >= 3.11 and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One more than there are cores: some tests wait for deadlines and for processes to start.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# By file, for what its tests share; in their order, because the longest files have few tests.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: run test test-slow check bench docs proto dist clean
.DEFAULT_GOAL := run

# The main job: five different DQN agents on CartPole, alone and federated.
run: $(VENV)/.run
	$(BIN)/fedhql run cartpole-n5 --budget 200000 --seeds 0,1,2 --out runs/cartpole-n5 --resume

test: $(VENV)/.test
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.test
	FEDHQL_TESTS_OPTIMISE=1 $(PYTEST) -m slow

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/remote.py
	PYTHONPATH=. $(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/secure.py
	$(BIN)/python benchmarks/cluster.py

# The documentation site, in site/. A broken link fails.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# After a change of the wire; its version is part of what is generated.
proto: $(VENV)/.check
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/fedhql/remote/wire.proto

# What users install: the wheel in an empty environment gives a first result.
dist: $(BIN)/python
	$(PIP) 'build>=1.2,<2'
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(PYTHON) -m venv dist/empty
	dist/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	dist/empty/bin/fedhql --version
	du -sh dist/empty
	dist/empty/bin/fedhql run cartpole-n5 --budget 20000 --set agents.learning_starts=1000 --seeds 0 --out dist/first-run
	rm -rf dist/empty dist/first-run
	@ls -l dist

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedhql needs Python >= 3.11; say: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# Box2D for Linux on ARM is built here: with the swig of PyPI, which pip's isolated builds cannot see.
$(VENV)/.box2d: | $(BIN)/python
ifeq ($(shell uname -sm),Linux aarch64)
	@echo "building Box2D (once, a minute) ..."
	$(PIP) 'setuptools>=70.1' 'swig>=4,<5'
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation box2d-py==2.3.8
endif
	@touch $@

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing fedhql into $(VENV) (once, a minute or two) ..."
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.box2d
	@echo "installing fedhql and what its tests need into $(VENV) (once, a minute or two) ..."
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.check: pyproject.toml | $(VENV)/.box2d
	@echo "installing fedhql and its checkers into $(VENV) (once, a minute or two) ..."
	$(PIP) --editable '.[check]'
	@touch $@ $(VENV)/.test $(VENV)/.run

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "installing what builds the documentation into $(VENV) (once, half a minute) ..."
	$(PIP) --editable '.[docs]'
	@touch $@ $(VENV)/.run
