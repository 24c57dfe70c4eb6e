# Every target does its own set-up: Python 3.11+ and make are all a fresh machine needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 6
READY  := $(VENV)/.ready
NODE   := $(VENV)/.node
# A plugin that comes with a dependency and is of no use here costs each process of the tests half a second.
PYTEST := $(BIN)/python -m pytest -p no:langsmith_plugin -n $(JOBS)

.PHONY: up test check bench chaos sync docs screenshots lock clean system

# What a node needs is little, and quickly there; what tests need comes on top.
$(NODE): requirements-node.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-node.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(NODE)

$(READY): requirements.lock $(NODE)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@touch $(READY)

# Optional parts from the system's packages (a second server to test against); silently left out where not allowed.
system:
	@tools/system-packages

up: $(NODE)
	$(BIN)/holdfast up --data .holdfast --playground $(ARGS)

# Written once, not compiled anew by each of the many processes that the tests start, whatever the environment says.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY) system
	$(PYTEST) --ignore=tests/chaos $(ARGS)
	$(if $(ARGS),,$(PYTEST) -p no:schemathesis --dist loadgroup tests/chaos)  # by themselves: they need the whole machine

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/make_sync.py --check
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/make_grafana.py --check

bench: $(READY) system
	$(BIN)/python -m bench $(ARGS)

# Processes killed and frozen, connections cut, servers restarted, and every message accounted for at the end.
chaos: $(READY)
	$(BIN)/python -m chaos $(ARGS)

sync: $(READY)
	$(BIN)/python tools/make_sync.py

docs: $(READY)
	$(BIN)/python tools/make_docs.py

# The pictures of the dashboard in the docs, taken of a node at work; needs Chromium.
screenshots: $(READY) system
	$(BIN)/python tools/screenshots.py

lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml requirements-dev.in --extra all --universal --python-version 3.11 \
		--generate-hashes --no-header --no-emit-index-url --no-annotate --upgrade --quiet -o requirements.lock
	printf 'hatchling\neditables\n' | $(BIN)/uv pip compile pyproject.toml - --extra node --extra monitor \
		--universal --python-version 3.11 --constraints requirements.lock \
		--generate-hashes --no-header --no-emit-index-url --no-annotate --quiet -o requirements-node.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
