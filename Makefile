# Needs python >= 3.11 and make; no Java, no Maven, no Docker. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := .ci/requirements.lock

# Old distributions keep `python3` older than 3.11 beside a newer `python3.x`: take the first that
# serves. `make install PYTHON=/path/to/python` decides it by hand.
PYTHON ?=
FIND_PYTHON = for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$python"; exit; }; done; exit 1

# Two processes, each with a broker of its own; a file stays together, because its tests share an engine.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help install demo test check conformance bench chaos lock kafka-start kafka-stop clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with the locked dependencies and this package

$(STAMP): $(LOCK) pyproject.toml
	@python=$$($(FIND_PYTHON)) || { \
		echo "No python >= 3.11 with venv and ensurepip found."; \
		echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or say which: make install PYTHON=/path/to/python3"; \
		exit 1; }; \
	test -x $(BIN)/python && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Creating $(VENV) with $$($$python --version)"; "$$python" -m venv --clear $(VENV); }
	@echo "Installing the locked dependencies"
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: install ## run the CSV import demo on a local broker
	$(BIN)/broker-engine demo

test: install ## run every test (starts its own Kafka)
	$(BIN)/pytest tests/ $(PARALLEL)

check: install ## format, lint, types, layers and the quick tests, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(wildcard tests/unit tests/contract) -m "not kafka and not slow" $(PARALLEL)

conformance: install ## run the conformance rows against a real broker
	$(BIN)/pytest tests/conformance $(PARALLEL)

bench: install ## measure throughput and latency on a local broker
	$(BIN)/python -m tests.benchmarks.run

chaos: install ## kill and suspend processes under load, then check the promises
	$(BIN)/python -m tests.chaos.run

lock: install ## rewrite the lock after a change of dependencies (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --fork-strategy fewest --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --output-file $(LOCK)

kafka-start: install ## start a local broker that keeps running
	$(BIN)/broker-engine kafka start

kafka-stop: ## stop it
	$(BIN)/broker-engine kafka stop

clean: ## remove .venv, caches and build output (not the broker's jars)
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis htmlcov .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
