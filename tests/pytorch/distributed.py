"""Which of PyTorch's distributed tests are run on the device, and with what in the environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .names import COPIED, DISTRIBUTED_VARIABLE

RANKS = 4
"""As many as PyTorch's harnesses start for most tests; each has an adapter of its own."""
SPAWNED_RANKS = 2
"""Those of ``test_distributed_spawn``, as in PyTorch's own runs of it."""
LONGEST_TEST_S = 240
SPAWN = "distributed/test_distributed_spawn"
"""Its body is PyTorch's ``distributed_test``, which says ``.cuda(rank)``: it is translated."""
FILES = """
    distributed/tensor/test_dtensor distributed/tensor/test_dtensor_ops distributed/tensor/test_redistribute
    distributed/tensor/test_tensor_ops distributed/tensor/test_pointwise_ops distributed/tensor/test_matrix_ops
    distributed/tensor/test_math_ops distributed/tensor/test_view_ops distributed/tensor/test_embedding_ops
    distributed/tensor/test_convolution_ops distributed/tensor/test_random_ops distributed/tensor/test_init
    distributed/tensor/test_api distributed/tensor/test_optimizers distributed/tensor/test_attention
    distributed/tensor/test_dtensor_compile distributed/tensor/experimental/test_local_map
    distributed/tensor/parallel/test_tp_style distributed/tensor/parallel/test_parallelize_api
    distributed/tensor/parallel/test_tp_examples distributed/tensor/parallel/test_tp_random_state
    distributed/tensor/parallel/test_fsdp_2d_parallel distributed/test_device_mesh
    distributed/_composable/fsdp/test_fully_shard_training distributed/_composable/fsdp/test_fully_shard_comm
    distributed/_composable/fsdp/test_fully_shard_init distributed/_composable/fsdp/test_fully_shard_state_dict
    distributed/_composable/fsdp/test_fully_shard_mixed_precision distributed/_composable/fsdp/test_fully_shard_frozen
    distributed/_composable/fsdp/test_fully_shard_clip_grad_norm_ distributed/_composable/fsdp/test_fully_shard_autograd
    distributed/_composable/fsdp/test_fully_shard_grad_scaler distributed/_composable/fsdp/test_fully_shard_extensions
    distributed/_composable/test_replicate distributed/fsdp/test_fsdp_core distributed/fsdp/test_fsdp_misc
    distributed/checkpoint/test_state_dict distributed/checkpoint/test_dtensor_checkpoint
    distributed/checkpoint/test_dtensor_resharding distributed/checkpoint/test_fsdp_dsd
    distributed/checkpoint/test_checkpoint
    distributed/pipelining/test_schedule_multiproc distributed/pipelining/test_stage
    distributed/test_c10d_functional_native distributed/test_functional_api distributed/test_c10d_object_collectives
    distributed/optim/test_zero_redundancy_optimizer
""".split()


def apart(files: Sequence[str]) -> list[list[str]]:
    """Files that run in one process each time: the translated one by itself."""
    translated = [name for name in files if is_translated(name)]
    others = [name for name in files if not is_translated(name)]
    return [group for group in (others, translated) if group]


def is_translated(file: str) -> bool:
    """Whether a file's tests are written for CUDA."""
    return Path(file).stem == Path(SPAWN).name


def environment(device: str, scratch: Path, files: Sequence[str]) -> dict[str, str]:
    """What the tests find in the environment on ``device``: "privateuse1", or "cpu"."""
    (scratch / "barrier").touch()
    common = {
        "TEMP_DIR": str(scratch),
        "WORLD_SIZE": str(SPAWNED_RANKS),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LONGEST_TEST_S),
        DISTRIBUTED_VARIABLE: "1",
    }
    if device == "cpu":
        return {**common, "BACKEND": "gloo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    copied = {COPIED: str(copied_body(scratch))} if any(map(is_translated, files)) else {}
    copies = os.environ.get("TORCH_WEBGPU_COPIES", str(RANKS))
    return {**common, **copied, "BACKEND": "nccl", "TORCH_WEBGPU_COPIES": copies}


def copied_body(scratch: Path) -> Path:
    """A copy of ``distributed_test.py`` outside of the installed package, which translation takes for a program's."""
    spec = find_spec("torch.testing")
    assert spec is not None
    assert spec.origin is not None
    body = Path(spec.origin).parent / "_internal" / "distributed" / "distributed_test.py"
    return Path(shutil.copy(body, scratch / "translated_distributed_test.py"))
