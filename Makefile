# All targets run in a virtual environment that they create.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Programs start in half of the time from bytecode, which many containers forbid Python to write.
unexport PYTHONDONTWRITEBYTECODE
CODE := airflow_provider_statecheck tests dags scripts benchmarks docker

.PHONY: help demo up status logs cli down test soak matrix check fmt docs bench bench-quick clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt scripts/preflight
	@sh scripts/preflight $(PYTHON)
	@echo "Creating $(VENV) (takes a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## Kill a real Spark job at 80 % and watch its retry resume
	@sh scripts/preflight $(BIN)/python
	@$(BIN)/python -m scripts.demo

up: $(READY) ## Start Airflow, Spark, PostgreSQL and an S3 store as local processes
	@sh scripts/preflight $(BIN)/python
	@$(BIN)/python -m scripts.stack up

status: $(READY) ## Show the health of these processes
	@$(BIN)/python -m scripts.stack status

logs: $(READY) ## Show the last lines of their logs; SERVICE=scheduler for one service, LINES=100 for more lines
	@$(BIN)/python -m scripts.stack logs $(if $(SERVICE),--service $(SERVICE)) $(if $(LINES),--lines $(LINES))

cli: $(READY) ## Run airflow statecheck in this installation, such as make cli ARGS="jobs"; AIRFLOW=1 for any airflow command
	@$(BIN)/python -m scripts.stack cli $(if $(AIRFLOW),,statecheck) $(ARGS)

down: $(READY) ## Stop these processes and delete their files
	@$(BIN)/python -m scripts.stack down

test: $(READY) ## Run the tests
	@sh scripts/run_tests $(BIN)/python 'not soak' $(ARGS)

soak: $(READY) ## Run the long tests
	@PYTEST_TIMEOUT=14400 sh scripts/run_tests $(BIN)/python 'soak or live' $(ARGS)

matrix: $(READY) ## Run chosen tests with other versions of Spark, Airflow and Python; ONLY=spark4.1 for some, SHORT=1 for one pair
	@sh scripts/preflight $(BIN)/python
	@$(BIN)/python -m scripts.matrix $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY))

check: $(READY) ## Lint, format, types, layers, unused code, spelling, wording, docker/
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff check --quiet --preview --select D421 $(CODE) # properties are nouns
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m scripts.islands --roots scripts/extension_points.txt
	@$(BIN)/codespell
	@$(BIN)/python -m scripts.wording
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/shellcheck docker/make_secrets scripts/preflight scripts/run_tests
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml

fmt: $(READY) ## Format the code
	@$(BIN)/ruff check --fix --quiet $(CODE) || true
	@$(BIN)/ruff format $(CODE)

docs: $(READY) ## Build the documentation in .docs; warnings are errors
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c scripts/docs docs .docs

bench: $(READY) ## Run the benchmarks against the peers; ONLY=S1,D1 for a subset
	@$(BIN)/python -m benchmarks.run $(if $(ONLY),--only $(ONLY))

bench-quick: $(READY) ## Run the benchmarks with small sizes
	@$(BIN)/python -m benchmarks.run --quick $(if $(ONLY),--only $(ONLY))

clean: ## Delete the files of these targets
	@test ! -e .stack || { echo "clean: the services of make up are running from $(VENV); run make down first" >&2; exit 1; }
	@rm -rf $(VENV) .demo .docs .matrix .mypy_cache .ruff_cache .hypothesis spark-warehouse
