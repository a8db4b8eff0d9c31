# torch-webgpu on a software adapter (lavapipe), for trying it where there is no GPU:
#   docker build -t torch-webgpu . && docker run --rm torch-webgpu
#   docker run --rm torch-webgpu python examples/digits.py
# On Linux with a GPU, pass its device on: docker run --rm --device /dev/dri torch-webgpu
# Another Python or torch, or a mirror of packages: --build-arg PYTHON=3.13, TORCH=2.14.1, TORCH_INDEX=https://…
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/*

# A CPU build of torch: webgpu needs none of CUDA's packages.
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch==$TORCH"

WORKDIR /opt/torch-webgpu
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[dawn,demo]"
COPY examples examples
COPY scripts/smoke.py scripts/smoke.py

RUN useradd --create-home --uid 1000 user \
    && mkdir out && chown user out
USER 1000
CMD ["torch-webgpu", "doctor"]
