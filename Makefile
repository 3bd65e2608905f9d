# `make run` and `make test` work on a bare checkout: they make their own environment.
#
# Needs: Python 3.11 or newer with venv, and make. The environment lies in $(VENV).

new_enough := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c '$(new_enough)' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
SCENARIO ?= scenarios/alexnet_32node.yaml

# Many processes start here, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test long validate validation fuzz properties same bench crosscheck speed transfer gpu host devices gallery commands docs integrations package trajectories profiles lint types imports check clean
.DEFAULT_GOAL := run

run: $(VENV)/run.stamp  ## the main job
	$(BIN)/gcsim run $(SCENARIO)

test: $(VENV)/dev.stamp  ## the test suite, on all cores
	$(BIN)/python -m pytest -p no:benchmark --numprocesses=logical --maxprocesses=8 --dist=worksteal

# Some wait more than they compute: for a network, or for a signal.
long: one_more = $(shell $(BIN)/python -c 'import os; print(1 + (os.cpu_count() or 1))')
long: $(VENV)/dev.stamp  ## the sweeps that `make test` leaves out; whole runs take gigabytes each
	$(BIN)/python -m pytest -p no:benchmark --numprocesses=$(one_more) --maxprocesses=8 --dist=loadfile --no-loadscope-reorder -m long --override-ini=addopts="--import-mode=importlib --strict-markers --strict-config -ra --ignore=tests/benchmarks --ignore=tests/crosscheck --ignore=tests/integrations"

validate: $(VENV)/run.stamp  ## predictions against measured clusters, with their bounds
	$(BIN)/gcsim validate -o build/validation

validation: $(VENV)/run.stamp  ## docs/validation.md and its figures
	PYTHONPATH=. $(BIN)/python -m tests.benchmarks.validation_page docs

fuzz: $(VENV)/dev.stamp  ## mutated files of all kinds (docs/fuzzing.md); COUNT, SEED, FIRST, ONLY=name,name
	$(BIN)/python -m tests.fuzz $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) $(if $(ONLY),--only $(ONLY))

properties: $(VENV)/dev.stamp  ## the property-based tests with examples that nobody has seen
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -m hypothesis --override-ini=addopts="--import-mode=importlib --strict-config -ra --ignore=tests/benchmarks --ignore=tests/crosscheck --ignore=tests/integrations"

same: $(VENV)/dev.stamp  ## whether results and pages (or ONLY=name,name) are those of the commit OLD
	$(BIN)/python tests/same.py $(OLD) $(if $(ONLY),--only $(ONLY))

bench: $(VENV)/dev.stamp  ## the figures of docs/performance.md
	$(BIN)/python -m pytest tests/benchmarks --ignore=tests/benchmarks/test_bench_compressors.py --benchmark-only --override-ini=addopts="--import-mode=importlib --strict-markers"
	$(BIN)/python tests/benchmarks/engine_speed.py

crosscheck: $(VENV)/dev.stamp  ## collectives against SimGrid, where it is installed
	$(BIN)/python -m pytest tests/crosscheck --override-ini=addopts="--import-mode=importlib --strict-markers -rs"

speed: $(VENV)/dev.stamp  ## docs/compressor-speed.md
	mkdir -p build
	$(BIN)/python -m pytest tests/benchmarks/test_bench_compressors.py --benchmark-only --benchmark-json=build/speed.json --override-ini=addopts="--import-mode=importlib --strict-markers"
	$(BIN)/python tests/benchmarks/speed_table.py build/speed.json > docs/compressor-speed.md

devices: $(VENV)/run.stamp  ## docs/devices.md
	$(BIN)/python tests/benchmarks/device_table.py > docs/devices.md

transfer: $(VENV)/dev.stamp  ## docs/kernel-transfer.md, and the same with two threads
	mkdir -p build
	PYTHONPATH=. $(BIN)/python tests/benchmarks/transfer_table.py --threads 1 --rounds 4 > build/kernel-transfer.md
	mv build/kernel-transfer.md docs/kernel-transfer.md
	PYTHONPATH=. $(BIN)/python tests/benchmarks/transfer_table.py > build/kernel-transfer.md
	mv build/kernel-transfer.md docs/kernel-transfer-two-threads.md

gpu: $(VENV)/run.stamp  ## docs/gpu-measured.md, on a machine with an NVIDIA GPU; PART="correct stages", ONLY=name,name, OUT=folder
	@PYTHONPATH=. $(BIN)/python -m tests.benchmarks.gpu $(PART) $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

host: $(VENV)/dev.stamp  ## docs/host-time.md, compressors/launches.csv: what a bucket takes the host of a GPU, without one
	mkdir -p build
	PYTHONPATH=. $(BIN)/python -m tests.benchmarks.host_time > build/host-time.md
	PYTHONPATH=. $(BIN)/python -m tests.benchmarks.launches > build/launches.csv
	mv build/host-time.md docs/host-time.md
	mv build/launches.csv compressors/launches.csv

trajectories: $(VENV)/run.stamp  ## those that come with gcsim and are stale, trained again: hours
	PYTHONPATH=. $(BIN)/python -m tests.benchmarks.shipped_trajectories

profiles: $(VENV)/run.stamp  ## traffic that comes with gcsim and is stale, measured again: two hours
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m tests.benchmarks.shipped_profiles

gallery: $(VENV)/run.stamp  ## docs/compressors.md
	PYTHONPATH=. $(BIN)/python -m tests.benchmarks.gallery > docs/compressors.md

commands: $(VENV)/run.stamp  ## docs/commands.md
	$(BIN)/python -m typer gcsim.cli.app utils docs --name gcsim --title Commands --output docs/commands.md

# Links lead from pages to pages and to code, so both lie in build/docs as they do here.
pages := README.md CONTRIBUTING.md CHANGELOG.md CITATION.cff docs analysis compressors scenarios simulator tests traces
docs: $(VENV)/docs.stamp  ## the pages as a site, build/site; a broken link or anchor fails
	rm -rf build/docs && mkdir -p build/docs
	ln -s $(addprefix ../../,$(pages)) build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

integrations: build/integrations/stamp  ## Hugging Face, Lightning and TensorBoard, in an environment of their own
	build/integrations/bin/python -m pytest tests/integrations --override-ini=addopts="--import-mode=importlib --strict-markers"

package: $(VENV)/dev.stamp  ## dist/: wheel and sdist, each installed and tried where there is no checkout
	$(BIN)/python tests/package.py dist

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/docstrings.py

types: $(VENV)/dev.stamp
	$(BIN)/mypy

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

check: test lint types imports

$(VENV)/bin/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(new_enough)' || \
	  { echo "error: gcsim needs Python 3.11 or newer; run make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "This Python has no venv: installing Debian's python3-venv"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; \
	  else \
	    echo "error: $(PYTHON) has no venv; run: sudo apt-get install python3-venv" >&2; exit 2; \
	  fi
	$(PYTHON) -m venv $(VENV)

# pip is not quiet: it names each file with its size and says how far it is.
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt
define announce
  @echo "Installing gcsim and its libraries into $(abspath $(VENV)): PyTorch, numba, scipy, matplotlib"
  @echo "and smaller ones, 1.3 GB on disk; a PyTorch with CUDA (pip's choice on Linux) takes several GB more."
endef
define installed
  @touch $@
  @echo "Installed: $(BIN)/gcsim (after '. $(BIN)/activate': gcsim)"
endef

# A failed installation leaves no stamp and is tried again. Bytecode is made of what is imported: of
# one file in five.
$(VENV)/run.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(announce)
	$(PIP) -e .
	$(installed)

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(announce)
	$(PIP) -e ".[dev]"
	@touch $(VENV)/run.stamp
	$(installed)

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(VENV)/run.stamp
	$(PIP) -e ".[docs]"
	@touch $@

build/integrations/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/integrations
	build/integrations/bin/python -m pip install --no-compile -c constraints.txt -e ".[digits,huggingface,lightning,tensorboard]" pytest hypothesis
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
