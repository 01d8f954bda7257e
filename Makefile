# One command each. Everything is installed into .venv and node_modules, once: the stamps lie inside them, so deleting a
# folder is enough to start over. Needs Python 3.10 or newer, Node 20 or newer, and make.

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,fast,gpu,poster,pandas
PYTEST := $(BIN)/python -m pytest -q
# tests/conftest.py says which tests stay together, and which begin.
PARALLEL := -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export COCKPIT_PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup install browser bundles demo test check lint format types javascript generated pytest vitest e2e build release generate bench experiments diagnose-bench clean

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-15s %s\n", $$1, $$2}'

# ---- setting up

setup: install bundles browser ## installs everything into .venv and node_modules
	@echo "cockpit: ready; try: make demo"

install: $(VENV)/installed

node_modules/installed: package.json package-lock.json
	@command -v npm >/dev/null || { echo "cockpit: npm was not found; install Node 20 or newer (https://nodejs.org)" >&2; exit 1; }
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "cockpit: Node 20 or newer is needed; this is $$(node --version)" >&2; exit 1; }
	@echo "cockpit: installing JavaScript tools"
	@npm ci --no-fund --no-audit --loglevel=error >/dev/null
	@touch $@

$(BIN)/python:
	@python=$$(sh scripts/find_python.sh) || exit 1; \
	echo "cockpit: making $(VENV) with $$($$python --version)"; \
	"$$python" -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py node_modules/installed | $(BIN)/python
	@echo "cockpit: installing Python packages (about two minutes, 2 GB)"
	@$(BIN)/python -m pip install -q -q -e '.[$(EXTRAS)]' -c constraints.txt
	@touch $@

bundles: install
	@$(BIN)/python hatch_build.py

browser: $(VENV)/browser

$(VENV)/browser: scripts/find_browser.py | install
	@echo "cockpit: looking for a browser"
	@$(BIN)/python scripts/find_browser.py --install > $@.new && mv $@.new $@ && echo "cockpit: using $$(cat $@)"

# ---- using

demo: install bundles ## trains a small network and shows where to look
	@$(BIN)/cockpit demo

bench: install bundles ## what tracking costs, beside the alternatives
	@$(BIN)/python benchmarks/run.py

experiments: install ## the paper's experiments in their quick forms; writes docs/experiments.md
	@$(BIN)/python experiments/run.py

diagnose-bench: install ## is the diagnosis right? seeded faults and healthy runs (hours; resumable)
	@$(BIN)/python -m benchmarks.diagnosis.run
	@$(BIN)/python -m benchmarks.diagnosis.score runs/diagnosis --save

# ---- checking

test: setup lint generated ## everything that CI runs
	@$(MAKE) --no-print-directory -j 2 types javascript vitest
	@$(MAKE) --no-print-directory pytest
	@$(MAKE) --no-print-directory e2e
	@echo "cockpit: all tests passed"

check: install lint types javascript vitest ## the quick part: lint, types and fast tests
	@$(PYTEST) -m "not slow and not browser"

lint: install
	@echo "cockpit: lint and format"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "cockpit: run: make format" >&2; exit 1; }

format: install ## formats all code
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@npm run --silent format

types: install
	@echo "cockpit: types"
	@$(BIN)/mypy --no-error-summary

javascript: install
	@echo "cockpit: JavaScript lint, types and size"
	@npm run --silent check

generated: install
	@echo "cockpit: generated code"
	@$(BIN)/python scripts/generate.py --check

pytest: install bundles
	@echo "cockpit: Python tests"
	@$(PYTEST) $(PARALLEL) -m "not browser and not alone"
	@$(PYTEST) -m alone

vitest: install
	@echo "cockpit: JavaScript tests"
	@npm run --silent test

e2e: install bundles browser
	@echo "cockpit: browser tests"
	@COCKPIT_BROWSER="$$(cat $(VENV)/browser)" $(PYTEST) $(PARALLEL) -m browser

# ---- making

generate: install ## Python and TypeScript from the schema
	@$(BIN)/python scripts/generate.py

build: install bundles ## bundles, wheel and sdist in dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls -1 dist

release: install bundles ## sdist and wheel in dist/, tried in an empty environment
	@$(BIN)/python scripts/release.py

clean: ## removes what was built and installed; runs/ stays
	@rm -rf $(VENV) .venv-generate node_modules dist build cockpit_widget/static tb_plugin/static cockpit_core/report/static cockpit_core/kernels/native/library
	@rm -rf .pytest_cache .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
