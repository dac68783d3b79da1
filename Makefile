# The two commands of a fresh checkout: `make bench` and `make test`. Both make the virtual environment first.

PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3; do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

unexport PYTHONDONTWRITEBYTECODE

.PHONY: bench test lint wheel clean

bench: $(STAMP)
	$(BIN)/pytest benchmarks/terminal_test --model=scripted

test: $(STAMP)
	$(BIN)/pytest tests -m "not slow" -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(STAMP)
	$(BIN)/python -m build --wheel

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11.4 or newer is needed, and none was found on PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# without the 500 MB of model clients and plots that only its own agent loop imports; it needs Python 3.12
	if "$(BIN)/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
	  "$(BIN)/python" -m pip install --quiet --constraint constraints.txt --no-deps yc-bench; fi
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
