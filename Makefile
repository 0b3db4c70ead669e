# `make help` lists the targets. Each target prepares what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
FIRN_CACHE ?= $(HOME)/.cache/firn
export FIRN_CACHE
# Python writes bytecode even if the environment forbids it. Otherwise each process of a test compiles the project again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.requirements
CLASSES := $(VENV)/classes.jsa
KAFKA_CLASSES := $(VENV)/kafka.jsa
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.requirements
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.requirements
PYTEST := $(PYTHON) -m pytest
# Tests that share servers stay in one process (tests/conftest.py). One process more than cores: those of the cluster mostly wait.
SIDE_BY_SIDE := -n 3

.PHONY: help
help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## the set-up that the demo needs, then 336,776 flights from Kafka into an Iceberg table, queried and audited
	@$(MAKE) --no-print-directory -j2 $(DEMO_STAMP) demo-cluster
	@FIRN_REUSE=1 $(DEMO_VENV)/bin/python hack/demo

.PHONY: demo-cluster
demo-cluster:
	@hack/setup demo

$(DEMO_STAMP): requirements/demo.txt hack/venv
	@hack/venv $(DEMO_VENV) demo

.PHONY: test
test: setup lint ## all set-up, then lint, types, import rules, unit, contract, integration and e2e tests
	@FIRN_REUSE=1 $(PYTEST) tests -m "not long" $(SIDE_BY_SIDE)

.PHONY: test-fast
test-fast: venv lint ## lint, types, import rules and unit tests; needs no cluster and no JVM
	@$(PYTEST) tests/unit -m "not long and not slow" -n 2

.PHONY: test-long
test-long: setup ## all tests, with more seeds, more killed processes and longer loads
	@FIRN_LONG=1 FIRN_REUSE=1 $(PYTEST) tests $(SIDE_BY_SIDE) --timeout 1800

.PHONY: bench
bench: setup ## all benchmarks, or those that NAME lists; prints a line of JSON per figure and appends it to bench/results.jsonl
	@$(PYTHON) hack/bench/run $(NAME)

.PHONY: lint
lint: venv ## format, lint, types, import rules
	@$(VENV)/bin/ruff check -q .
	@$(VENV)/bin/ruff format -q --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

.PHONY: format
format: venv ## rewrite the code in the project's format
	@$(VENV)/bin/ruff check -q --fix .
	@$(VENV)/bin/ruff format -q .

.PHONY: generate
generate: venv ## write the CRDs, the chart's copies, values.schema.json and the reference pages from the code
	@$(PYTHON) hack/generate
	@$(PYTHON) -m hack.reference

.PHONY: verify
verify: venv ## fail if a file that `make generate` writes is not current
	@$(PYTHON) hack/generate --check
	@$(PYTHON) -m hack.reference --check

.PHONY: docs
docs: $(DOCS_STAMP) ## build the documentation site into build/docs; a warning fails the build
	@$(DOCS_VENV)/bin/sphinx-build -q -W -E -a --keep-going -c docs . build/docs
	@echo "docs: open build/docs/index.html"

$(DOCS_STAMP): requirements/docs.txt
	@python3 -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

.PHONY: lock
lock: venv ## compile requirements/*.in to hashed requirements/*.txt
	@$(VENV)/bin/pip install -q uv
	@for set in operator broker spark dev demo docs; do \
	  $(VENV)/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
	    $$([ $$set != demo ] || echo --no-emit-package=numpy --no-emit-package=pandas) \
	    --python-version 3.11 requirements/$$set.in -o requirements/$$set.txt; done

.PHONY: setup
setup: ## the Python environment, tools, images and a running cluster
	@$(MAKE) --no-print-directory -j2 venv cluster
	@$(MAKE) --no-print-directory $(CLASSES) $(KAFKA_CLASSES)

$(CLASSES): $(STAMP) hack/images/spark/class_archive.py hack/images/jars/pom.xml
	@echo "classes: writing the archive of classes for Spark in tests"
	@$(PYTHON) hack/images/spark/class_archive.py $@ $$(PYTHONPATH=.:spark_apps $(PYTHON) -m tests.servers.spark) >$(VENV)/classes.log 2>&1 || { cat $(VENV)/classes.log >&2; exit 1; }

$(KAFKA_CLASSES): $(STAMP) tests/servers/kafka.py hack/images/jars/pom.xml
	@echo "classes: writing the archive of classes for Kafka in tests"
	@rm -f $@ && PYTHONPATH=. $(PYTHON) -m tests.servers.kafka $@

.PHONY: cluster
cluster: ## tools, images and a running cluster
	@hack/setup

.PHONY: venv
venv: $(STAMP) ## the Python environment of development and tests

$(STAMP): requirements/dev.txt pyproject.toml hack/venv
	@hack/venv $(VENV) dev

.PHONY: down
down: ## stop the cluster and all of its processes
	@hack/cluster down
