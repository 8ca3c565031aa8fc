# Two commands do everything on a machine with Python, pip and make:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FEDGREC_SOURCES := pyproject.toml constraints.txt
# Python compiles what it imports; pip would compile all of every package, which takes a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Hundreds of processes import the same packages: each would compile them anew where the environment forbids to keep that.
unexport PYTHONDONTWRITEBYTECODE
WORKERS = $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count()))")

.PHONY: help demo test check types packages site slow containers bench clean

help:
	@echo "make demo    set up .venv, train on the built-in data, write a report and a page (runs/demo)"
	@echo "make test    set up .venv with the development tools, then every check and test"
	@echo "make check   format, lint, types, layers, packages, site, tests (make test runs it after the set-up)"
	@echo "make site    the documentation as a site that needs no network: build/site/index.html"
	@echo "make slow    the tests that take minutes"
	@echo "make containers  build the image, train a small federation in containers: needs Docker with compose"
	@echo "make bench   the benchmarks; results go to benchmarks/results"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/.demo
	$(BIN)/fedgrec demo

test: check

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory -j 2 types packages site kernels
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

types: $(VENV)/.dev
	$(BIN)/mypy

packages: $(VENV)/.dev
	$(BIN)/python -m tests.packages

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # --quiet would drop the warnings uncounted

kernels: $(VENV)/.dev
	$(BIN)/python -m tests.compile_ahead

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

containers: $(VENV)/.demo
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/containers.sh

bench: $(VENV)/.dev
	$(INSTALL) -e ".[bench]"
	$(BIN)/python -m benchmarks

# Stamps: a set-up is done again only when what it depends on has changed.
$(VENV)/.demo: $(FEDGREC_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: $(FEDGREC_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip  # the pip that comes with Python takes twice as long to choose among wheels
	$(INSTALL) -e ".[dev]"
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
