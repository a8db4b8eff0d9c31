"""DistributedDataParallel: what it leaves to other devices, though it works here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import distributed
from torch.autograd import Variable

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE

COMPRESSING = frozenset(("bf16_compress_hook", "bf16_compress_wrapper_hook"))
"""The names of hooks that PyTorch refuses where there is neither NCCL nor XCCL."""
CALL_NOTHING_LATER = frozenset(("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "noop_hook"))
"""PyTorch's hooks whose callbacks call no collective."""
HOOKS_OF_PYTORCH = "torch.distributed.algorithms.ddp_comm_hooks."
SEEN = "_webgpu_seen_last_bucket"


def checking_hooks(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``DistributedDataParallel._check_comm_hook``: gloo sums bfloat16."""

    @wraps(plain)
    def check_comm_hook(self: Any, hook: Any) -> None:
        if self.device_type == DEVICE_TYPE and getattr(hook, "__name__", "") in COMPRESSING:

            @wraps(hook)
            def of_another_name(*args: Any) -> Any:
                return hook(*args)

            of_another_name.__name__ = "hook"
            plain(self, of_another_name)
        else:
            plain(self, hook)

    return check_comm_hook


def registering_hooks(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``DistributedDataParallel.register_comm_hook``: a bucket's collectives are all called before the next bucket's.

    Callbacks of a hook may call collectives, as those of PowerSGD and of ZeRO do. They run at once with NCCL, whose
    futures are complete when they are made, and when the results are there with gloo: on each rank at another time.
    """

    @wraps(plain)
    def register_comm_hook(self: Any, state: object, hook: Callable[..., Any]) -> None:
        plain(
            self, state, in_order(hook) if self.device_type == DEVICE_TYPE and not calls_nothing_later(hook) else hook
        )

    return register_comm_hook


def calls_nothing_later(hook: Callable[..., Any]) -> bool:
    """Whether a hook is one of PyTorch's that calls no collective in a callback."""
    module, name = getattr(hook, "__module__", ""), getattr(hook, "__name__", "")
    return module.startswith(HOOKS_OF_PYTORCH) and name in CALL_NOTHING_LATER


def in_order(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that returns when its future is complete."""

    @wraps(hook)
    def run(*args: Any) -> Any:
        future = hook(*args)
        if hasattr(future, "wait"):  # compiled autograd's hooks return none
            future.wait()
        return future

    return run


def registering_builtin_hooks(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``DistributedDataParallel._register_builtin_comm_hook``: C++'s hook for float16 takes C++'s futures alone."""

    @wraps(plain)
    def register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        compresses = comm_hook_type.name == "FP16_COMPRESS"
        if self.device_type == DEVICE_TYPE and compresses:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.register_comm_hook(self.process_group, fp16_compress_hook)
            self.logger._set_comm_hook_name(str(comm_hook_type))
        else:
            plain(self, comm_hook_type)

    return register_builtin_comm_hook


def waiting_for_delayed(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``DistributedDataParallel._delayed_all_reduce_hook``: the backward pass ends when its gradients are there.

    PyTorch drops the work: NCCL's stream has the next bucket's wait for it.
    """

    @wraps(plain)
    def delayed_all_reduce_hook(self: Any, grad: Any) -> Any:
        if self.device_type != DEVICE_TYPE:
            return plain(self, grad)
        gradients = self._delay_grad_buffer.div_(distributed.get_world_size(self.process_group))
        work = distributed.all_reduce(gradients, group=self.process_group, async_op=True)
        Variable._execution_engine.queue_callback(work.wait)
        return grad

    return delayed_all_reduce_hook


def filling_first_buckets(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The hook of mixed precision: the buckets of the first backward pass have been given new memory of the lower
    precision, and the gradients have been written to the old.
    """

    @wraps(plain)
    def allreduce_and_upcast(hook_state: Any, bucket: Any) -> Any:
        if bucket.buffer().device.type == DEVICE_TYPE and not getattr(hook_state, SEEN, False):
            for view, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
            setattr(hook_state, SEEN, bucket.is_last())
        return plain(hook_state, bucket)

    return allreduce_and_upcast
