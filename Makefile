# Everything lives in .venv; `make help` lists the habits.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
SEEDS ?= 0:240
# Each broker that a test starts would compile all modules again: a third of its CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test check sbom format bench browser cluster pipeline docs-site vendor figures docs seeds soak mutants mutants-sample hostile lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.txt pyproject.toml hatch_build.py src/postroad/compiled/blooms.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Postroad needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP) ## Install everything into .venv (quick when nothing changed)

demo: setup ## A short tour on embedded defaults; KEEP=1 keeps it running, with traffic, for the web console
	@$(BIN)/postroad demo $(if $(KEEP),--keep)

test: setup ## Run the tests
	$(BIN)/python -m pytest -n $(WORKERS)

check: setup ## Formatting, lint, strict types, import layers, generated docs, licences of dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check
	$(BIN)/python tools/dependencies.py licences

sbom: setup ## Write sbom.json, a bill of materials (CycloneDX) of the lock files
	$(BIN)/python tools/dependencies.py sbom sbom.json

format: setup ## Rewrite files to the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.peers: $(STAMP) requirements/bench.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/bench.txt
	@touch $@

bench: $(VENV)/.peers ## Wall-clock benchmarks, some beside peers; writes benchmarks/results/
	$(BIN)/python -m benchmarks.run $(ONLY)

$(VENV)/.browser: $(STAMP) requirements/browser.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/browser.txt
	@touch $@

browser: $(VENV)/.browser ## The console in a real browser (installs Debian's chromium where it may); makes docs/images
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "No Chromium, and this is not root on Debian, so it cannot be installed here: the tests in a browser are skipped."
	$(BIN)/python -m pytest -n 0 -m browser tests/browser

$(VENV)/.site: $(STAMP) requirements/docs.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

docs-site: $(VENV)/.site ## Build the docs as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

cluster: setup ## Jobs, source and sink on a standalone Spark cluster that the tests start (some minutes)
	$(BIN)/python -m pytest -n 0 -m cluster tests/cluster

pipeline: setup ## Long tests of the jobs on Spark: continued audits, shipped files, lakes (some minutes)
	$(BIN)/python -m pytest -n $(WORKERS) -m pipeline tests/spark/jobs

vendor: setup ## Take the console's front-end libraries from the package registry (needs npm)
	$(BIN)/python tools/vendor_console.py

figures: setup ## Figures of the papers, shortened to some minutes; writes experiments/
	$(BIN)/python -m experiments.run $(ONLY)

docs: setup ## Regenerate the generated reference pages
	$(BIN)/python -m docs.generate

seeds: setup ## Random seeds of the simulated overlay, in parallel; SEEDS=A:B for others
	$(BIN)/postroad sim soak --seeds $(SEEDS) --workers $(WORKERS)

soak: setup ## Long random runs
	$(BIN)/python -m pytest -n $(WORKERS) -m soak

hostile: setup ## Attack a broker; another client's p99 stays within three times its value (needs a quiet machine); ONLY=attack for some
	$(BIN)/python -m benchmarks.hostile --check $(ONLY)

mutants-sample: setup ## Plant a few bugs of each area: each must be found within 20 seeds
	$(BIN)/python -m tests.mutants --workers $(WORKERS) --sample

mutants: setup ## Plant bugs and see whether the soak finds each; ONLY=name for some
	$(BIN)/python -m tests.mutants --workers $(WORKERS) --only "$(ONLY)" --keep
	$(if $(ONLY),,$(BIN)/python -m tests.topics.mutants --keep)
	$(BIN)/python -m docs.generate

lock: ## Renew requirements/*.txt from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes \
	  --group dev --extra uvloop --extra topics --extra postgres --extra metrics --extra spark --extra connect --extra lake --extra security --extra console --extra top pyproject.toml -o requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes \
	  --group bench --constraint requirements/dev.txt pyproject.toml -o requirements/bench.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes \
	  --group docs --constraint requirements/dev.txt pyproject.toml -o requirements/docs.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-annotate --generate-hashes \
	  --group browser --constraint requirements/dev.txt pyproject.toml -o requirements/browser.txt

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
