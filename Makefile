# `make demo` and `make test` do their own set-up. VENV, PYTHON, JOBS and ARGS can be set on the command line.
VENV   ?= .venv
PYTHON ?= python3
JOBS   ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ARGS   ?=
bin    := $(VENV)/bin
stamp  := $(VENV)/.installed
ecosystem       := .venv-ecosystem
ecosystem_stamp := $(ecosystem)/.installed

# What failed among eleven thousand tests in two busy processes runs again in one that is quiet. Whatever passes only
# there is named twice in the output, and is a defect to mend; it is not a reason to refuse a change that did not make it.
once_more = echo "FAILED: running those again, alone" && $(bin)/python -m pytest --last-failed --last-failed-no-failures none -v
run_tests = $(bin)/python -m pytest -n $(JOBS) --dist worksteal -q $(1) || { [ $$? = 1 ] && $(once_more) $(1); }

# Tests in a process of their own, on Dawn; nothing where SwiftShader could not be had, which was said, or wgpudawn.
swiftshader_manifest := .swiftshader/vk_swiftshader_icd.json
on_dawn = @if [ -e $(swiftshader_manifest) ] && $(bin)/python -c 'import wgpudawn' 2>/dev/null; then set -x; \
	export VK_DRIVER_FILES=$(CURDIR)/$(swiftshader_manifest) TORCH_WEBGPU_IMPLEMENTATION=dawn $(2); \
	$(call run_tests,$(1)); fi
# What exercises the runtime, and a file of each family of kernels. It runs with the eight buffers that every adapter
# binds, and browsers where nobody asks for more.
few_buffers := TORCH_WEBGPU_MAX_BUFFERS=8
dawn_sample := $(addprefix tests/device/,runtime/test_runtime.py runtime/test_bounds.py reductions/test_subgroups.py runtime/test_prepared.py \
	errors/test_refusals.py engine/test_replay.py engine/test_batching.py fusion/test_fusion_patterns.py \
	tensors/test_views.py reductions/test_scan.py reductions/test_norm.py \
	indexing/test_sort.py linalg/test_distance.py nn/test_pool.py nn/test_ctc.py random/test_generators.py \
	optim/test_foreach_kinds.py graphs/test_graphs_memory.py) \
	tests/extend/test_compile_shader.py tests/extend/test_compile_shader_bounds.py
# With no more than the strictest adapter has, and with the buffers that Metal leaves to a kernel. Operators whose kernels
# are chosen by limits, and the largest lists.
strictest := TORCH_WEBGPU_TARGET=browser
metal_buffers := TORCH_WEBGPU_MAX_BUFFERS=29
limits_sample := tests/conformance/test_ops.py tests/device/optim/test_foreach_kinds.py -k 'not test_ops or \
	(forward and float32 and (addmm or sort or cumsum or native_layer_norm or conv2d or index_put))'
lists := tests/device/optim tests/device/fusion/test_limits.py

.DEFAULT_GOAL := help
.PHONY: help setup vulkan swiftshader web web-setup web-test demo test dawn limits check hooks ecosystem distributed pytorch-tests lint types format bench soak docs clean

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

test: setup swiftshader ## the whole test suite, on every core; without ARGS also a sample of it on Dawn
	$(call run_tests,$(ARGS))
	$(if $(ARGS),,export $(strictest); $(call run_tests,$(limits_sample)))
	$(if $(ARGS),,$(call on_dawn,$(dawn_sample),$(few_buffers)))

limits: setup ## the conformance tests as on the strictest adapter (or ARGS), and lists with as many buffers as on Metal
	export $(strictest); $(call run_tests,$(or $(ARGS),tests/conformance))
	$(if $(ARGS),,export $(metal_buffers); $(call run_tests,$(lists)))

dawn: setup swiftshader ## the tests of the device on Dawn, on the software adapter SwiftShader
	$(call on_dawn,$(or $(ARGS),tests/device))

swiftshader:
	@scripts/swiftshader.sh

web-setup: setup ## Chromium, Firefox, playwright and TypeScript, for exported models
	@VENV=$(VENV) scripts/web.sh

web-test: web-setup ## exported models in headless Chromium; without ARGS also in headless Firefox
	$(bin)/python -m pytest -q --full tests/web tests/unit/test_export.py $(ARGS)
	$(if $(ARGS),,WEB_BROWSER=firefox $(bin)/python -m pytest -q tests/web)

web: setup ## train small models, export them, and serve the pages: draw a digit, generate text, train
	$(bin)/python examples/web.py $(ARGS)

check: lint types ## rules, formatting, types, architecture, unit tests: no GPU, less than a minute
	$(bin)/python -m pytest -n $(JOBS) --dist worksteal -q tests/test_architecture.py tests/unit $(ARGS)

hooks: $(stamp) ## the quick checks before every commit (pre-commit)
	$(bin)/pre-commit install

distributed: setup ## torch.distributed on the device: every test of several processes, the long ones too
	$(bin)/python -m pytest -q --full tests/distributed $(ARGS)

pytorch-tests: setup ## PyTorch's own test files on the device: make pytorch-tests PT=path/to/pytorch/test (ARGS=--distributed)
	$(bin)/python -m tests.pytorch $(or $(PT),$(error PT is not set: the test folder of a PyTorch checkout)) --jobs $(JOBS) $(ARGS)

ecosystem: vulkan $(ecosystem_stamp) ## transformers, accelerate, peft, diffusers, timm, lightning, … on the device, in an environment of their own
	$(ecosystem)/bin/python -m pytest -n $(JOBS) --dist worksteal -q --full tests/ecosystem $(ARGS)

$(ecosystem_stamp): pyproject.toml constraints.txt constraints-ecosystem.txt scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(ecosystem) EXTRA=ecosystem CONSTRAINTS=constraints-ecosystem.txt scripts/setup.sh
	@touch $@

lint: $(stamp) ## ruff: rules and formatting
	$(bin)/ruff check .
	$(bin)/ruff format --check .

types: $(stamp) ## mypy on src, as for Linux, Windows and macOS
	$(bin)/mypy --platform linux
	$(bin)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(bin)/mypy --platform darwin --cache-dir .mypy_cache/darwin

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
	rm -rf $(VENV) $(ecosystem) .swiftshader .web-tools build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
