# torch-webgpu on a software adapter (lavapipe), for trying it where there is no GPU:
#   docker build -t torch-webgpu . && docker run --rm torch-webgpu
#   docker run --rm torch-webgpu python examples/digits.py
# On Linux with a GPU, pass its device on: docker run --rm --device /dev/dri torch-webgpu
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/*

# A CPU build of torch: webgpu needs none of CUDA's packages.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

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
