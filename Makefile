# Every target sets up what it needs; `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
FLOWER := .venv-flower

# Python files are compiled once, not by every process that a target starts.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo quick test lint check bench fuzz setup clean help

help:            ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

setup: $(STAMP)  ## the virtual environment with everything installed

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (about a minute the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray,postgresql]'
	@touch $@

demo: $(STAMP)   ## a small audit with 2 % of the devices colluding; ends in runs/demo/audit.html
	@$(BIN)/sparsefed data fetch fmnist
	@$(BIN)/sparsefed demo

quick: $(STAMP)  ## what one runs while working: no processes, no browser, nothing slow, fewer random examples
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not process and not browser" --hypothesis-profile=quick

test: $(STAMP)   ## all tests but those that need Flower: make flower-test
	@$(BIN)/sparsefed data fetch fmnist || echo "Going on without it: the tests that need Fashion-MNIST will say so."
	@$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)   ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint test ## what a change must pass

bench: $(STAMP)  ## the benchmarks (ratios against named references); wants an idle machine
	@$(BIN)/python -m benchmarks.engine --json runs/bench-engine.json
	@$(BIN)/python -m benchmarks.population --json runs/bench-population.json
	@$(BIN)/python -m benchmarks.aggregators --json runs/bench-aggregators.json
	@$(BIN)/python -m benchmarks.local_training --json runs/bench-local-training.json
	@$(BIN)/python -m benchmarks.attacks --json runs/bench-attacks.json
	@$(BIN)/python -m benchmarks.overhead --json runs/bench-overhead.json
	@$(BIN)/python -m benchmarks.footprint --json runs/bench-footprint.json
	@$(BIN)/python -m benchmarks.augmentation --json runs/bench-augmentation.json
	@$(BIN)/python -m benchmarks.loading --json runs/bench-loading.json
	@$(BIN)/python -m benchmarks.recording --json runs/bench-recording.json
	@$(BIN)/python -m benchmarks.secure --json runs/bench-secure.json

.PHONY: package

package: $(STAMP)  ## sdist and wheel in dist/, and the wheel installed and tried in a clean environment
	@PYTHON=$(PYTHON) BIN=$(BIN) tools/package.sh

.PHONY: docs

docs: $(VENV)/.docs  ## the documentation site in build/site; a warning or a dead internal link is an error
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site . build/site
	@$(BIN)/python docs/site/check_links.py build/site
	@echo "Open build/site/index.html"

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

.PHONY: advisories peers
ADVISORIES := .venv-advisories

advisories:      ## published advisories on the pinned dependencies; needs the network
	@test -x $(ADVISORIES)/bin/pip-audit || { $(PYTHON) -m venv $(ADVISORIES) && $(ADVISORIES)/bin/python -m pip install --quiet pip-audit; }
	@$(ADVISORIES)/bin/pip-audit --no-deps --disable-pip -r constraints.txt

PEERS := .venv-peers

peers: $(PEERS)/.installed  ## the environment of the peers that bench compares with

$(PEERS)/.installed: benchmarks/peers.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@echo "Installing the peers into $(PEERS) (about a minute the first time) ..."
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	@touch $@

.PHONY: flower flower-test flower-soak

flower: $(FLOWER)/.installed  ## ten nodes with TLS and keys, some lying, one killed; ends in runs/flower/flower.html
	@$(FLOWER)/bin/python -m sparsefed.flower.show runs/flower

flower-test: $(FLOWER)/.installed  ## the tests of the deployment, in Flower's own environment
	@$(FLOWER)/bin/python -m pytest -n 2 --dist loadfile tests/flower src/sparsefed/flower

flower-soak: $(FLOWER)/.installed  ## the deployment's long tests: four rules, liars, 20 kills, every fault; an hour on an idle machine
	@SPARSEFED_FLOWER_SOAK=1 $(FLOWER)/bin/python -m pytest -n 0 tests/flower/test_processes.py tests/flower/test_deployed.py

NVFLARE := .venv-nvflare
.PHONY: nvflare-test

nvflare-test: $(NVFLARE)/.installed  ## the tests of NVFlare's aggregator, in an environment of its own
	@$(NVFLARE)/bin/python -m pytest -n 0 tests/nvflare

$(NVFLARE)/.installed: pyproject.toml constraints-nvflare.txt
	@test -x $(NVFLARE)/bin/python || $(PYTHON) -m venv $(NVFLARE)
	@echo "Installing NVFlare into $(NVFLARE) (about a minute the first time) ..."
	@$(NVFLARE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-nvflare.txt -e '.[dev,nvflare]'
	@touch $@

# Flower's own pins conflict with constraints.txt (typer, rich, packaging), so it has an environment of its own.
$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	@test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	@echo "Installing Flower into $(FLOWER) (about a minute the first time) ..."
	@$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e '.[dev,flower]'
	@$(FLOWER)/bin/python -m compileall -q $(FLOWER)/lib || true
	@touch $@

.PHONY: cluster-soak
cluster-soak: $(STAMP)  ## the cluster's long tests in nine settings: 20 workers and 3 machines killed in each, 10 cells in a grid
	@SPARSEFED_CLUSTER_SOAK=1 $(BIN)/python -m pytest -n 0 tests/processes/test_cluster.py

fuzz: $(STAMP)   ## damaged and hostile inputs, a minute for each group of targets
	@for group in readers configs folders aggregate; do $(BIN)/python -m fuzz $$group --seconds 60 || exit 1; done

clean:           ## remove the environment and caches, keep runs
	rm -rf $(VENV) $(FLOWER) $(NVFLARE) .venv-peers .mypy_cache .pytest_cache .ruff_cache
