"""Programs that need a patch of PyTorch each, by its row, and what they say without it: for test_patches.py."""

from __future__ import annotations

import torch

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
ENDS = "the process ends"
NO_INDUCTOR = "KeyError: 'webgpu'" if TORCH > (2, 11) else "Device webgpu not supported"
NO_PINNED_MEMORY = "getPinnedMemoryAllocator"
AS_ON_WINDOWS = "from torch_webgpu.aten.dispatch.torch_hooks import PINNED\nPINNED.deleter = 1\n"
"""C++ gets no allocator of pinned memory, as where its function cannot be replaced."""
STORAGE = "torch.storage.UntypedStorage"
OPTESTS = "torch.testing._internal.optests"

# Row → a program, and what its error says without the patch.
PROGRAMS = {
    f"{STORAGE}.__new__": ("torch.UntypedStorage(8, device='webgpu')", ENDS),
    f"{STORAGE}.new": ("assert storage().new().device.type == 'webgpu'", ENDS),
    f"{STORAGE}.resize_": ("assert storage().resize_(64).nbytes() == 64", "resizePrivateUse1Bytes"),
    f"{STORAGE}.is_shared": (
        "assert not storage().is_shared(), 'shared'",
        "works" if TORCH < (2, 12) else "AssertionError: shared",
    ),
    f"{STORAGE}.share_memory_": ("refused(storage().share_memory_)", "not refused"),
    f"{STORAGE}._share_fd_cpu_": ("refused(storage()._share_fd_cpu_)", "only available on CPU"),
    f"{STORAGE}._share_filename_cpu_": ("refused(storage()._share_filename_cpu_)", "only available on CPU"),
    "torch.storage._StorageBase.to": (
        f"{AS_ON_WINDOWS}storage().to(device='cpu', non_blocking=True)",
        NO_PINNED_MEMORY,
    ),
    "torch.autograd.graph.save_on_cpu.__init__": (
        f"""{AS_ON_WINDOWS}
with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="webgpu"):
    (torch.ones(2, device="webgpu", requires_grad=True) ** 2).sum().backward()
""",
        NO_PINNED_MEMORY,
    ),
    "torch._tensor_str._str": (
        """
import torch.func
outside = torch.arange(3.0, device="webgpu")[torch.tensor([7], device="webgpu")]
try:
    repr(outside)
except IndexError as error:
    kept = error
assert torch.func.vmap(torch.func.vmap(lambda x: x.unsqueeze(0)))(torch.ones(3, 2)).shape == (3, 2, 1)
assert kept
""",
        "Cannot access storage of BatchedTensorImpl",
    ),
    "torch.optim.optimizer.Optimizer._accelerator_graph_capture_health_check": (
        """
p = torch.nn.Parameter(torch.ones(3, device="webgpu"))
p.grad = torch.ones(3, device="webgpu")
optimizer = torch.optim.Adam([p])
optimizer.step()
try:
    with torch.webgpu.graph(torch.webgpu.Graph()):
        optimizer.step()
except RuntimeError as error:
    assert "capturable is False" in str(error)
else:
    raise AssertionError("captured")
""",
        "AssertionError: captured",
    ),
    "torch.nn.parallel.data_parallel.DataParallel.__init__": (
        "assert not torch.nn.DataParallel(torch.nn.Linear(2, 2)).device_ids, 'scatters'",
        "AssertionError: scatters",
    ),
    "torch.nn.parallel.data_parallel.DataParallel.forward": (
        """
parallel = torch.nn.DataParallel(torch.nn.Linear(2, 2)).to("webgpu")
parallel(torch.ones(4, 2))
assert parallel.device_ids == [0, 1]
""",
        "Expected all tensors to be on the same device",
    ),
    "torch.nn.parallel.data_parallel._get_all_device_indices": (
        """
from types import SimpleNamespace
from torch_webgpu.distributed import adapters
adapters.get_device_properties = lambda index: SimpleNamespace(name=index, adapter_type="")
assert torch.nn.DataParallel(torch.nn.Linear(2, 2).to("webgpu")).device_ids == [0], "all"
""",
        "AssertionError: all",
    ),
    **{
        f"{module}.parallel_apply": (
            f"""
module = sys.modules["{module}"]
module.parallel_apply([torch.sin], [torch.ones(1, device="webgpu:1")], devices=["webgpu:1"])
""",
            "Expected a cuda device, but got: webgpu:1",
        )
        for module in (
            "torch.nn.parallel",
            "torch.nn.parallel.data_parallel",
            "torch.nn.parallel.parallel_apply",
        )
    },
    "torch.cuda.nccl.is_available": (
        """
import warnings
warnings.simplefilter("error")
assert not torch.cuda.nccl.is_available([torch.ones(1, device="webgpu")])
""",
        "not compiled with NCCL",
    ),
    "torch._C._set_default_dtype": (
        """
x = torch.ones(2, dtype=torch.int32, device="webgpu")
torch.set_default_dtype(torch.float32)
assert x.sqrt().dtype == torch.float32, "of the cache"
torch.set_default_dtype(torch.float16)
assert x.sqrt().dtype == torch.float16, "of the cache"
""",
        "AssertionError: of the cache",
    ),
    "torch._C._set_default_tensor_type": (
        """
x = torch.ones(2, dtype=torch.int32, device="webgpu")
torch.set_default_tensor_type(torch.FloatTensor)
assert x.sqrt().dtype == torch.float32, "of the cache"
torch.set_default_tensor_type(torch.HalfTensor)
assert x.sqrt().dtype == torch.float16, "of the cache"
""",
        "AssertionError: of the cache",
    ),
    "torch._TorchCompileInductorWrapper.__call__": (
        """
torch._dynamo.reset()
torch.compile(lambda x: x.sin() + 1)(torch.ones(3, device="webgpu"))
""",
        NO_INDUCTOR,
    ),
    "torch.autograd.graph._engine_run_backward": (
        """
torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward  # as torch.compiler puts it back
backward_on_second()
""",
        "device_ready_queues_",
    ),
    "torch.autograd._engine_run_backward": ("backward_on_second()", "device_ready_queues_"),
    "torch.Event": (
        """
event = torch.Event("webgpu")
event.record()
event.synchronize()
""",
        "doesn't support synchronizing events",
    ),
    "torch.Stream": (
        "assert torch.Stream(device='webgpu:1').device.index == 1, 'of the first adapter'",
        "AssertionError: of the first adapter",
    ),
    "sys.excepthook": ("assert 'did you mean' in printed()", "AssertionError"),
    "threading.excepthook": ("assert 'did you mean' in printed_of_thread()", "AssertionError"),
    "torch.Tensor.to": ("assert_current(lambda: torch.ones(2).to('webgpu'))", "of the first adapter"),
    "torch.Tensor.new_tensor": (
        "assert_current(lambda: torch.ones(2).new_tensor([1], device='webgpu'))",
        "of the first adapter",
    ),
    "torch.nn.parameter.UninitializedTensorMixin._allowed_methods": (
        "assert_current(lambda: torch.nn.LazyLinear(2).to('webgpu').weight)",
        "uninitialized parameter",
    ),
    "torch.tensor": ("assert_current(lambda: torch.tensor([1], device='webgpu'))", "of the first adapter"),
    "torch.as_tensor": ("assert_current(lambda: torch.as_tensor([1], device='webgpu'))", "of the first adapter"),
    "torch.Tensor.webgpu": ("assert_has_method()", "has no attribute 'twice'"),
    "torch.asarray": ("assert_current(lambda: torch.asarray([1], device='webgpu'))", "of the first adapter"),
}
