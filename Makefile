# `make demo` and `make test` do their own set-up. VENV, PYTHON, JOBS and ARGS can be set on the command line.
VENV   ?= .venv
PYTHON ?= python3
JOBS   ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ARGS   ?=
bin    := $(VENV)/bin
stamp  := $(VENV)/.installed
ecosystem       := .venv-ecosystem
ecosystem_stamp := $(ecosystem)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup vulkan demo test unit ecosystem pytorch-tests lint types format bench soak docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

setup: vulkan $(stamp) ## virtual environment, pinned torch, Vulkan driver where there is none

vulkan:
	@scripts/vulkan.sh

$(stamp): pyproject.toml constraints.txt scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup.sh
	@touch $@

demo: setup ## train a convolutional network on handwritten digits with device="webgpu"
	$(bin)/python examples/digits.py $(ARGS)

test: setup ## the whole test suite, on every core
	$(bin)/python -m pytest -n $(JOBS) --dist worksteal -q $(ARGS)

unit: $(stamp) ## the tests that need no GPU, in less than a minute
	$(bin)/python -m pytest -n $(JOBS) -q tests/unit tests/golden tests/test_architecture.py $(ARGS)

pytorch-tests: setup ## PyTorch's own test files on the device: make pytorch-tests PT=path/to/pytorch/test
	$(bin)/python -m tests.pytorch $(or $(PT),$(error PT is not set: the test folder of a PyTorch checkout)) --jobs $(JOBS) $(ARGS)

ecosystem: vulkan $(ecosystem_stamp) ## transformers, accelerate, peft, diffusers, timm, lightning, … on the device, in an environment of their own
	$(ecosystem)/bin/python -m pytest -n $(JOBS) --dist worksteal -q --full tests/ecosystem $(ARGS)

$(ecosystem_stamp): pyproject.toml constraints.txt constraints-ecosystem.txt scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(ecosystem) EXTRA=ecosystem CONSTRAINTS=constraints-ecosystem.txt scripts/setup.sh
	@touch $@

lint: $(stamp) ## ruff: rules and formatting
	$(bin)/ruff check .
	$(bin)/ruff format --check .

types: $(stamp) ## mypy on src
	$(bin)/mypy

format: $(stamp) ## rewrite the sources as ruff wants them
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

bench: setup ## host cost, launch cost, bandwidth, matmul speed and what fusion is worth, as JSON lines
	$(bin)/python benchmarks/eager.py $(ARGS)
	$(bin)/python benchmarks/fusion.py $(ARGS)

soak: setup ## half an hour of random programs in several threads, compared with the CPU
	$(bin)/python benchmarks/soak.py $(ARGS)

docs: setup ## regenerate what the documentation derives from the sources
	$(bin)/python scripts/docs.py $(ARGS)

clean: ## everything that can be rebuilt, the virtual environment too
	rm -rf $(VENV) $(ecosystem) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
