# Everything a developer does, by name. `make help` lists it.

PYTHON ?= python3
BIN := .venv/bin
# Options for `up`, as in: make run ARGS="--port 8001 --no-demo"
ARGS ?=
# What a check must not depend on: a database, or the settings of a production system.
NO_DATABASE := env -u DATABASE_URL -u CELERY_BROKER_URL FENCEPOST_ENV_FILE=/dev/null
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help run test check fix docs bench soak lock clean runtime dev

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: runtime ## Set up, then start everything on this machine, with demo data
	@exec $(BIN)/python manage.py up $(ARGS)

test: check ## Set up, check, then run the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: dev ## Style, types, import directions, migrations, lock files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(NO_DATABASE) $(BIN)/mypy .
	$(BIN)/lint-imports
	$(NO_DATABASE) $(BIN)/python manage.py check --fail-level WARNING
	$(NO_DATABASE) $(BIN)/python -W ignore manage.py makemigrations --check --dry-run
	$(BIN)/python requirements/check.py

fix: dev ## Format, and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: dev ## Write the tables in docs/ that follow from the code
	$(NO_DATABASE) $(BIN)/python -m docs.build

bench: dev ## Measure (see benchmarks/)
	$(BIN)/python -m benchmarks $(ARGS)

soak: dev ## Kill everything all the time for ten minutes; nothing may break
	$(BIN)/python -m benchmarks.soak $(ARGS)

lock: dev ## Make the lock files anew from pyproject.toml (UPGRADE=1: with newer versions)
	PATH="$(CURDIR)/$(BIN):$$PATH" requirements/lock $(if $(UPGRADE),--upgrade)

clean: ## Remove what was made, except the data
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

runtime:
	@PYTHON="$(PYTHON)" requirements/install runtime

dev:
	@PYTHON="$(PYTHON)" requirements/install dev
