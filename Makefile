# Two commands that need only Python, make and pip: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One more worker than there are cores, because tests of Flower's processes wait more than they compute. The
# tests of one file stay together, because they share what is expensive.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# Bytecode is kept, whatever the shell says, or each of the suite's hundred processes would compile it again.
export PYTHONDONTWRITEBYTECODE :=
# The commit that `make check` compares the working tree with.
SINCE ?= main

.PHONY: quickstart test wheel-test lint ruff check docs demo-deployment format clean

quickstart: $(VENV)/.installed
	$(BIN)/fedmt quickstart

# Runs everything that continuous integration runs. mypy uses one core, so the tests start at the same time.
test: ruff
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  echo "Skipped: the report's browser tests, since there is no Chromium here (Debian: apt-get install chromium)."
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
	  echo "Skipped: a federation through the proxy, since there is no nginx here (Debian: apt-get install nginx)."
	@ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || \
	  echo "Skipped: a node with a wrong clock, since there is no libfaketime here (Debian: apt-get install faketime)."
	@$(BIN)/mypy & types=$$!; set -x; $(PYTEST) --durations=20; tests=$$?; wait $$types && exit $$tests

# Tests the wheel in an empty environment and another folder. This takes a few minutes, mostly to install torch.
wheel-test: $(VENV)/.dev
	scripts/wheel_test.sh $(abspath $(BIN))/python

# For use while working: runs the fast tests of what changed (scripts/changed_tests.py has the rule).
check: lint
	@tests=$$($(BIN)/python scripts/changed_tests.py $(SINCE)) && set -x && $(PYTEST) -m "not slow" $$tests

lint: ruff
	$(BIN)/mypy

ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Builds the site into site/, which opens from disk. With --quiet, mkdocs would count no warnings, and --strict
# would have no effect.
docs: $(VENV)/.dev
	$(BIN)/python scripts/reference_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

# Runs three hospitals and a coordinator on this machine, over Flower with TLS, and through nginx if it is
# installed (docs/guides/deployment.md).
demo-deployment: $(VENV)/.flower
	$(BIN)/python examples/hospitals/demo.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamps depend on the files that say what to install, so a changed pin causes a new installation.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing fedmt into $(VENV). The first time takes several minutes, because PyTorch is large."
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/.flower: $(VENV)/.installed
	$(PIP) -e '.[flower]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) -e '.[dev,flower]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis site
