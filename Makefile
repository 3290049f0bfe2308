# Everything runs in .venv, which the first target that needs it creates from requirements/.
# A stamp file in .venv stands for each installed lock, so a second run installs nothing.

PYTHON ?= python3
BIN := .venv/bin
# The locks list every package, so nothing is left to resolve (--no-deps), and bytecode is compiled
# for what is imported, when it is imported (--no-compile): together a third of the time.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
# Without a bytecode cache every process would compile the packages it imports again.
unexport PYTHONDONTWRITEBYTECODE

WORKERS ?= 2
# Files go to the workers as they are free; tests that start processes stay with one worker.
XDIST := --numprocesses=$(WORKERS) --dist=loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: demo test slow lint types audit bench compare soak attack lock nightly clean help

demo: .venv/core  ## Pretrain, evaluate, export and try a small BERT; DATA=PATH takes your text
	@$(BIN)/bert-jax demo --workdir=demo_run $${DATA:+--data="$$DATA"}

test: .venv/dev  ## The tests, in WORKERS processes (2)
	@$(BIN)/pytest $(XDIST)

slow: .venv/torch .venv/libtpu  ## The tests that take longer, compare with PyTorch or describe TPUs
	@BERT_JAX_LIBTPU=$(CURDIR)/.venv/libtpu/libtpu/libtpu.so $(BIN)/pytest $(XDIST) -m "slow or torch"

lint: .venv/dev  ## Style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/dev  ## Static types
	@$(BIN)/mypy

audit:  ## Known vulnerabilities of the locked packages, where a service that knows can be reached
	@"$(PYTHON)" .ci/audit.py

bench: .venv/torch  ## Data pipeline and training speed, beside the alternatives
	@$(BIN)/python benchmarks/data.py
	@$(BIN)/python benchmarks/train_cpu.py
	@$(BIN)/python benchmarks/packing.py
	@$(BIN)/python benchmarks/input.py

compare: .venv/libtpu .venv/peer  ## The step compiled for TPUs beside its peer's: hours, no TPU
	@$(BIN)/python benchmarks/tpu_compile.py

soak: .venv/dev  ## A run disturbed 50 times, compared with one that was not; KILLS=N for another number
	@$(BIN)/python tests/soak.py --kills=$${KILLS:-50}

attack: .venv/dev  ## Kills, damage, full disks, hostile input: every kind of case, counted
	@$(BIN)/python tests/attack.py

nightly:  ## With the newest releases that setup.py allows: all tests, the soak, the faults
	@"$(PYTHON)" -m venv --clear .venv-nightly
	@.venv-nightly/bin/python -m pip install --quiet --upgrade -e '.[dev]'
	@.venv-nightly/bin/python -m pip install --quiet --upgrade --no-deps --target=.venv-nightly/libtpu libtpu
	@.venv-nightly/bin/pytest
	@BERT_JAX_LIBTPU=$(CURDIR)/.venv-nightly/libtpu/libtpu/libtpu.so .venv-nightly/bin/pytest -m nightly
	@.venv-nightly/bin/python tests/soak.py --kills=50
	@.venv-nightly/bin/python tests/mutants.py

clean:  ## Remove environments, caches and demo_run
	@rm -rf .venv .venv-nightly .venv-lock .venv-audit build dist demo_run *.egg-info \
	  .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## This list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

.venv/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	  { echo "error: bert-jax needs Python 3.11 to 3.13, $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo missing); say make PYTHON=python3.12" >&2; exit 1; }
	@echo "creating .venv with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear .venv
	@touch $@

.venv/core: requirements/core.txt setup.py pyproject.toml | .venv/python
	@echo "installing requirements/core.txt"
	@$(INSTALL) -r requirements/core.txt
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

.venv/dev: requirements/dev.txt .venv/core
	@echo "installing requirements/dev.txt"
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

# Here pip resolves: PyTorch's own packages differ by build (CUDA or CPU), so they are not locked.
.venv/torch: requirements/torch.txt .venv/dev
	@echo "installing requirements/torch.txt"
	@$(filter-out --no-deps,$(INSTALL)) -r requirements/torch.txt
	@touch $@

# What describes TPU slices to the tests, beside the other packages: among them, every start of JAX
# on a machine without a TPU would print a complaint.
.venv/libtpu: requirements/dev.txt .venv/dev
	@echo "installing libtpu for the tests of TPU slices"
	@$(INSTALL) --target=$@ --upgrade "libtpu==0.0.42.*"
	@touch $@

# The peer of benchmarks/tpu_compile.py: the last transformers with Flax models, apart from the one
# that the project works with.
.venv/peer: requirements/peer.txt .venv/core
	@echo "installing requirements/peer.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/peer.txt
	@touch $@

# The oldest supported Python resolves, because a release that runs on it has wheels for the newer
# ones too. Versions stay as they are unless setup.py asks for others; UPGRADE=1 takes the newest.
# Local build tags (torch's +cpu) and CUDA libraries belong to a machine, not to a lock. No hashes:
# one hash makes pip demand them all, and locally built wheels (torch's CPU builds) have none.
COMPILE := .venv-lock/bin/pip-compile --quiet --strip-extras --allow-unsafe --all-build-deps \
  --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --annotation-style=line
# $(call write-lock,NAME,OPTIONS,WHAT IT HOLDS)
define write-lock
@$(COMPILE) $2 --output-file=requirements/$1.txt setup.py > .venv-lock/$1.log 2>&1 || { cat .venv-lock/$1.log >&2; exit 1; }
@sed -nE -e '1i # Written by "make lock" from setup.py: $3. Linux, Python 3.11 to 3.13.' \
  -e 's/\+[a-z0-9]+ / /' -e '/^(nvidia|cuda|triton)/d' -e '/^[a-z]/p' \
  requirements/$1.txt > .venv-lock/$1.txt
@mv .venv-lock/$1.txt requirements/$1.txt
endef

lock:  ## Write requirements/*.txt anew from setup.py (Python 3.11; UPGRADE=1 for newest releases)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "error: make lock needs the oldest supported Python: PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	$(call write-lock,torch,$(if $(UPGRADE),--upgrade) --extra=dev --extra=torch,dev plus transformers and PyTorch$(comma) for parity tests and speed comparisons)
	@cp requirements/torch.txt requirements/dev.txt
	@cp requirements/torch.txt requirements/core.txt
	$(call write-lock,dev,--extra=dev,core plus the tests$(comma) the linter and the type checker)
	$(call write-lock,core,,what a run needs)
	@rm -rf .venv-lock
comma := ,
