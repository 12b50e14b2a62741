# make demo    the main job on real input, killed and resumed    make test    the tests
# make check   the one gate: format, lint, types, docs, tests     make bench   measure against the hand-written loop
# make docs    the documentation, in build/docs/index.html
# make check-all    the wheel, on each of PYTHONS, with the lowest and the newest dependencies

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
GROUPS := --group test --group lint --group docs
STAMP := $(VENV)/.installed

PYTHONS ?= python3.11 python3.12 python3.13

.PHONY: demo test check check-all lint types docs bench clean

demo: $(STAMP)
	$(BIN)/python -m examples.flights

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

check: lint types docs test

check-all: check
	PYTHONS="$(PYTHONS)" UV="$(or $(UV),$(CURDIR)/$(BIN)/uv)" .ci/check-all

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP)
	$(BIN)/sphinx-build -q --fresh-env --fail-on-warning --keep-going --builder html --doctree-dir build/doctrees docs build/docs

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("cano needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
ifneq ($(UV),)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --editable '.[all]' $(GROUPS)
else
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]' $(GROUPS)
endif
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
