# The commands of Headwater; `make help` lists them. The work is in scripts/, so that each part can be read and run alone.
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak check lint format bench docs lock clean

# A Python of your choice (3.11 to 3.13), and whatever else a command should be given.
PYTHON ?=
ARGS ?=
export PYTHON

BIN := .venv/bin
# What the tests need from Debian; everything else comes in wheels.
DEBIAN_PACKAGES := rabbitmq-server postgresql-15
BENCHMARKS := $(patsubst benchmarks/%/__main__.py,%,$(wildcard benchmarks/*/__main__.py))

# A HOME that is set but empty would send caches to the root directory; without one, the home of the account is used.
ifeq ($(HOME),)
unexport HOME
endif

# Some machines forbid Python to keep bytecode: then each process, of which the tests start thousands, compiles all of ours.
unexport PYTHONDONTWRITEBYTECODE

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with everything that development needs
	@scripts/setup dev

demo: ## Set up what the product needs and show it at work on private servers
	@scripts/setup run
	@env -u HEADWATER_URL $(BIN)/headwater demo $(ARGS)

test: ## Set up everything, also from Debian, and run all tests; ARGS="-k lsn -x" is passed on
	@scripts/install-debian $(DEBIAN_PACKAGES)
	@scripts/setup dev
	@scripts/prepare-tests
	@$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
	  --durations 10 $(ARGS)

soak: ## Run stories with random faults: make soak [MINUTES=30] [SEED=N] [STORY=crash]
	@scripts/install-debian $(DEBIAN_PACKAGES)
	@scripts/setup dev
	@$(BIN)/python -m tests.soak

check: lint test ## Lint, types, import order, docs and tests: all that must pass before a commit

lint: setup ## Check style, format, types, import order and documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy
	@$(BIN)/mkdocs build --strict --quiet

format: setup ## Format the code and repair what the linter can repair
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: ## Run one benchmark: make bench NAME=capture [QUICK=1]
	@test -n "$(filter $(BENCHMARKS),$(NAME))" || { \
	  echo "make bench needs NAME=..., one of: $(BENCHMARKS)" >&2; exit 2; }
	@scripts/setup dev
	@$(BIN)/python -m benchmarks.$(NAME) $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

docs: setup ## Build the documentation into site/
	@$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

lock: ## Lock the requirements again; ARGS=--upgrade takes the newest versions
	@scripts/lock $(ARGS)

clean: ## Remove all that these commands made: .venv, caches, site
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist site
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
