# The ways in. Each target is one script of scripts/, so that CI and people run the same.
MODEL ?=
PORT ?= 8000
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: run test test-full test-models check build bench lab docs clean help

run: ## Serve MODEL on 127.0.0.1:PORT; sets everything up the first time
	@scripts/run $(if $(MODEL),"$(MODEL)") --port "$(PORT)" $(ARGS)

test: ## Run the test suite (ARGS are pytest's)
	@scripts/test $(ARGS)

test-full: ## Run the suite with the whole product of the exactness matrix
	@scripts/test-models -m "" $(ARGS)

test-models: ## Run the tests of the two larger test models
	@scripts/test-models $(ARGS)

check: ## Check style, types, sizes, import edges, compile flags and generated docs
	@scripts/check

build: ## Build the native module in place, incrementally
	@scripts/setup && scripts/build

bench: ## Measure MODEL on this machine
	@scripts/bench "$(or $(MODEL),smollm2:135m)" $(ARGS)

lab: ## Climb the kernels' ladders, from the definition to what ships
	@scripts/lab $(ARGS)

docs: ## Generate the reference pages
	@scripts/setup && .venv/bin/python scripts/docs.py

clean: ## Remove everything that was built; models and downloads stay
	@rm -rf build dist .stamps .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -f src/headrace/_native*.so

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
