"""The patches of PyTorch: what is replaced in it, why, and what it would have to offer for the row to go.

All of them are applied from here. Each has a test in ``tests/test_patches.py`` that fails when PyTorch needs it no
longer, or has changed; docs/patches.md is made of these rows. Patches of other libraries are in ``integrations``, what
a translated program finds under PyTorch's names in ``translation/names``.
"""

from __future__ import annotations

from torch_webgpu_autoload import TESTED_TORCH

from .api import hints
from .api.accelerator import HOOKS
from .api.device import at_other_adapter
from .api.graphs import is_current_stream_capturing
from .api.streams import Stream, generic_event
from .aten.attention import flex_attention
from .aten.dispatch import (
    opcheck,
    torch_abi,
    torch_constructors,
    torch_dispatch_table,
    torch_guard,
    torch_hooks,
    torch_late_dynamo,
    torch_patches,
)
from .aten.dispatch.default_dtype import exchange
from .aten.foreach import optimizer_lists
from .aten.nn.conv import memory_format
from .aten.tensors.storage import new_storage, resize_storage
from .aten.tensors.views import SHARED_WITH_CPU
from .compile import private
from .compile import register as compiler
from .distributed import data_parallel, device_copies, registration
from .engine.generators import new_generator
from .engine.record import at_first_use
from .extend import functional
from .patching import Make, Patch, Patches

PYTORCH = "https://github.com/pytorch/pytorch"
STORAGE = "torch.storage"
SHARING_NEEDS = "a hook of Python backends for what is shared between processes"
BARE_DEVICES = "`webgpu` without an index means the first adapter: the C++ guard of a Python backend answers 0."
BARE_DEVICES_NEEDS = "`PythonDeviceGuard::getDevice` that asks Python, or `torch.webgpu.current_device`"


def row(
    module: str, target: str, make: Make, reason: str, needs: str, upstream: str | None = None, *, what: str = ""
) -> Patch:
    return Patch(module, target, make, reason, upstream and f"{PYTORCH}/{upstream}", needs, TESTED_TORCH, what)


def sharing(name: str, reason: str, upstream: str) -> Patch:
    """A method that shares a storage between processes."""
    refuse = torch_patches.on_webgpu(torch_patches.refuse_sharing)
    return row(STORAGE, f"UntypedStorage.{name}", refuse, reason, SHARING_NEEDS, upstream)


AT_REGISTRATION = Patches([
    row(
        "torch._C", "", lambda module: torch_guard.let_exceptions_pass(),
        "An exception in a hook or kernel of a backward pass ends the process: the guard of a Python backend calls "
        "Python in destructors and in functions that are `noexcept`.",
        "a device guard of Python backends that answers in C++ what is constant", "issues/161129",
        what="virtual functions of the device guard",
    ),
    row(
        "torch._C", "", lambda module: [torch_dispatch_table.share_kernel(overload) for overload in SHARED_WITH_CPU],
        "A view takes three times as long as on the CPU, 4 µs more: a kernel that Python registers is called through "
        "Python, although it is the CPU's, which is C++ and serves every device.",
        "`torch.library.Library.impl` that takes what `torch.library.get_kernel` returns, without Python",
        what="entries of view operators in the dispatcher's table",
    ),
    row(
        "torch.autograd", "_engine_run_backward", torch_patches.run_backward_in_calling_thread,
        "Backward on another adapter than the first fails: the engine has a worker a device, the guard reports one.",
        "`PythonDeviceGuard::deviceCount` that asks Python", "issues/161129",
    ),
    row(
        "torch.autograd.graph", "_engine_run_backward", torch_patches.run_backward_in_calling_thread,
        "`torch.compiler` puts `torch.autograd._engine_run_backward` back from here after a trace.",
        "`PythonDeviceGuard::deviceCount` that asks Python", "issues/161129",
    ),
    row(
        "torch._refs", "", torch_late_dynamo.leave_dynamo_out,
        "Meta kernels that are written in Python import Dynamo at their first call, 800 modules, in programs that "
        "compile nothing.",
        "`torch._disable_dynamo` that imports Dynamo where it is in use only", "pull/104317",
        what="functions below `torch._disable_dynamo`",
    ),
    row(
        "torch._ops", "", torch_abi.pass_autocast_through,
        "Higher-order operators have no kernel for the autocast key of out-of-tree devices, which is not in the list "
        "of keys that they skip.",
        "`AutocastPrivateUse1` in that list", "pull/110478",
        what="`_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS`",
    ),
    row(
        "torch._C", "_set_default_dtype", torch_patches.observe_default_dtype(exchange),
        "Results of meta kernels, which are cached, depend on the default dtype; nobody tells that it has changed, and "
        "asking for it would cost every call.", "a number that changes with the default dtype, or a callback",
    ),
    row(
        "torch._C", "_set_default_tensor_type", torch_patches.observe_default_dtype(exchange),
        "`torch.set_default_tensor_type` changes the default dtype, too.",
        "a number that changes with the default dtype, or a callback",
    ),
    row(
        STORAGE, "UntypedStorage.__new__", torch_patches.storage_constructor(new_storage),
        "`UntypedStorage(n, device=…)` dereferences the allocator that a Python backend has not.",
        "an allocator of Python backends", "pull/157859",
    ),
    row(
        STORAGE, "UntypedStorage.new", torch_patches.on_webgpu(lambda storage: new_storage(storage.device)),
        "`storage.new()` dereferences the allocator that a Python backend's storage has not.",
        "an allocator of Python backends", "issues/184032",
    ),
    row(
        STORAGE, "UntypedStorage.resize_", torch_patches.on_webgpu(resize_storage),
        "`storage.resize_` asks a hook that C++ backends can set and Python backends cannot.",
        "`resizePrivateUse1Bytes` among the hooks of Python backends", "pull/117211",
    ),
    row(
        STORAGE, "UntypedStorage.is_shared", torch_patches.on_webgpu(lambda storage: False),
        "Memory of every device but the CPU's counts as shared.", SHARING_NEEDS, "pull/175323",
    ),
    sharing(
        "share_memory_", "Memory of every device but the CPU's is taken for shared, and nothing is done.",
        "pull/175323",
    ),
    sharing("_share_fd_cpu_", "The error does not say what a program can do instead.", "issues/192099"),
    sharing("_share_filename_cpu_", "The error does not say what a program can do instead.", "issues/192099"),
    row(
        STORAGE, "_StorageBase.to", torch_patches.move_without_pinning,
        "`storage.to(\"cpu\", non_blocking=True)` asks for pinned memory, for which C++ has no allocator on Windows.",
        "an allocator of pinned memory of Python backends", "pull/157859",
    ),
    row(
        "torch.autograd.graph", "save_on_cpu.__init__", torch_patches.save_on_cpu_without_pinning,
        "`save_on_cpu(pin_memory=True)` pins memory where the device is available; C++ has no allocator on Windows.",
        "an allocator of pinned memory of Python backends", "pull/157859",
    ),
    row(
        "torch._tensor_str", "_tensor_str", torch_patches.print_on_host,
        "Tensors are printed in float64, which most adapters lack, one kernel for each step; only MPS is left out.",
        "printing of other devices' tensors on the CPU", "pull/130523",
    ),
    row(
        "torch._tensor_str", "_str", torch_patches.release_what_printing_holds,
        "While an error of printing is kept, nested `torch.func` transforms fail: its traceback holds a guard.",
        "`_DisableFuncTorch` as a context manager in `_str`",
    ),
    row(
        "torch", "Tensor.__dlpack_device__", torch_patches.name_dlpack_device,
        "`__dlpack_device__` raises for devices of out-of-tree backends: it compares with a name that none has.",
        "the comparison with the backend's name", "pull/195815",
    ),
    row(
        "torch.amp.grad_scaler", "GradScaler.unscale_", torch_patches.unscale_in_float32,
        "The reciprocal of the scale is taken in float64, which most adapters lack; only MPS is left out.",
        "float32 where the device has no float64", "pull/150255",
    ),
    row(
        "torch.optim.optimizer", "Optimizer._accelerator_graph_capture_health_check",
        torch_patches.refuse_uncapturable_optimizers(is_current_stream_capturing),
        "An optimizer that counts its steps on the host can be captured, and its replays repeat one step; PyTorch has "
        "it refuse on CUDA and XPU.",
        "the question to `torch.accelerator` whether a graph is captured, on every device", "pull/194362",
    ),
    row(
        "torch.optim", "", optimizer_lists.replace_multi_tensor_functions,
        "Speed alone: a step of an optimizer makes a Python list of tensors for each intermediate result, which here "
        "stays one list.",
        "nothing; a list type of `torch._foreach_*` would do", what="every `_multi_tensor_*` of the optimizers",
    ),
    row(
        "torch._C", "_conv_determine_backend_memory_format", torch_patches.lay_out_fake_convolutions(memory_format),
        "The results of fake convolutions are contiguous on devices that C++ does not know; compiled programs would "
        "view them so.",
        "the question to the backend which memory format its convolutions have", "pull/151042",
    ),
    row(
        "torch", "Event", torch_constructors.device_constructor(generic_event),
        "The event that C++ makes for a Python backend cannot wait and has no time.",
        "events among the functions of `torch._C._acc.DeviceGuard`", "issues/195458",
    ),
    row(
        "torch", "Stream", torch_constructors.device_constructor(Stream),
        "The stream that C++ makes for a Python backend is one of the first adapter.",
        "`PythonDeviceGuard::getNewStream` that asks Python", "issues/195458",
    ),
    row(
        "torch", "", torch_constructors.generator_constructor(new_generator),
        "`torch.Generator(device=…)` asks a hook that C++ backends can set and Python backends cannot.",
        "`getNewGenerator` among the hooks of Python backends", "pull/93920",
        what="`Generator`, or the call of its metaclass",
    ),
    row(
        "torch._C", "", torch_abi.accelerator_hooks(HOOKS),
        "`torch.accelerator` ends at the missing allocator and at the guard, which knows one adapter and no streams.",
        "`torch.accelerator` that asks the device module of a Python backend", "issues/196299", what="`_accelerator_*`",
    ),
    row(
        "torch", "_TorchCompileInductorWrapper.__call__", compiler.choosing,
        "`torch.compile(model)` means Inductor, which has no code generator for webgpu.",
        "a default backend of `torch.compile` for each device", "issues/136118",
    ),
    row(
        "torch._dynamo.backends.inductor", "", compiler.choose_by_name,
        "The backend of that name has no code generator for webgpu, whoever looks it up.",
        "a default backend of `torch.compile` for each device", "issues/136118",
        what="`inductor`, and its entry in the registry",
    ),
    row(
        "torch._dynamo.trace_rules", "", compiler.skip_own_modules,
        "After a graph break Dynamo would trace the kernels of eager operators, which are Python.",
        "a declaration by packages of what Dynamo is to skip", what="the list of modules that are skipped",
    ),
    row(
        "torch.nn.attention.flex_attention", "_validate_device", flex_attention.allow_webgpu,
        "`flex_attention` refuses devices that are not in a list of names, though its eager code runs on any.",
        "out-of-tree devices in that list", "pull/148656",
    ),
    *[
        row(
            module, "autograd_registration_check", opcheck.allow_webgpu,
            "`torch.library.opcheck` knows the devices, and their autograd keys, from a list of names.",
            "`AutogradPrivateUse1` in that list", "pull/190677",
        )
        for module in opcheck.MODULES
    ],
])  # fmt: skip
"""Those that are there from the beginning, or from when their module is imported."""

C10D = "torch.distributed.distributed_c10d"
C10D_IN_C = "torch._C._distributed_c10d"
DDP = "torch.nn.parallel.distributed"
FSDP_COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
MIXED_PRECISION = "torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks"
PYTHON_WORKS = "`PyWorkHolder` that forwards all virtual functions of `Work`"
AT_REGISTRATION += [
    row(
        C10D, "", registration.register_backend,
        "`torch.distributed` knows no backend for tensors of the device.",
        "gloo for tensors of out-of-tree devices", "issues/184010", what="the backend `webgpu`",
    ),
    row(
        C10D, "_new_process_group_helper", registration.completing_groups,
        "`init_process_group()` makes a backend for the tensors of the accelerator alone, and a group of gloo takes "
        "those of devices in a list of names.",
        "a backend for the CPU beside the accelerator's, and out-of-tree devices in that list", "issues/184010",
    ),
    *[
        row(
            module, "destroy_process_group", registration.draining,
            "A group is shut down while collectives are on their way back to the device.",
            "a function of Python's that backends are asked to end by",
        )
        for module in (C10D, "torch.distributed")
    ],
]  # fmt: skip
"""Those of ``torch.distributed`` that programs get before they make a process group."""

DATA_PARALLEL = "torch.nn.parallel.data_parallel"
SCATTERING = "`scatter` and `gather` for every device, or the check for them"
AT_REGISTRATION += [
    row(
        "torch._C", "", torch_patches.copies_between_devices(device_copies.FUNCTIONS, device_copies.call),
        "Copies between the devices of a process, which `nn.DataParallel` makes, are in builds for CUDA alone.",
        SCATTERING, "issues/143239",
        what="`_broadcast`, `_broadcast_coalesced`, `_scatter`, `_gather` and their forms with `out`",
    ),
    row(
        DATA_PARALLEL, "DataParallel.__init__", data_parallel.constructing,
        "`nn.DataParallel` moves a module of the CPU to webgpu because webgpu is there.",
        "a device that the program asks for", "issues/143239",
    ),
    row(
        DATA_PARALLEL, "DataParallel.forward", data_parallel.forwarding,
        "`nn.DataParallel` chooses its devices before its module is on one.",
        "a device that the program asks for", "issues/143239",
    ),
    row(
        DATA_PARALLEL, "_get_all_device_indices", data_parallel.devices_alike,
        "All adapters are an integrated GPU and a software adapter, too, and replicas wait for the slowest.",
        "a check of the balance that leaves devices out",
    ),
    *[
        row(
            module, "parallel_apply", data_parallel.applying,
            "The threads of replicas know of CUDA's autocast alone, and a device by a name of CUDA's.",
            "the current accelerator's autocast and names",
        )
        for module in ("torch.nn.parallel.parallel_apply", DATA_PARALLEL, "torch.nn.parallel")
    ],
    row(
        "torch.cuda.nccl", "is_available", data_parallel.asking_nccl,
        "Sums of gradients on several devices warn that PyTorch is not compiled with NCCL.",
        "the question after the tensors are seen to be CUDA's",
    ),
]  # fmt: skip
"""Those of ``nn.DataParallel``."""

AT_FIRST_GROUP = Patches([
    *[
        row(
            C10D_IN_C, f"Work.{name}", registration.lazily("work", "answered"),
            "C++ holds a work of Python's in an object that forwards `wait` and `get_future` alone.", PYTHON_WORKS,
        )
        for name in (
            "is_completed is_success exception result synchronize block_current_stream source_rank _source_rank "
            "get_future_result"
        ).split()
    ],
    *[
        row(
            module, "split_group", registration.lazily("groups", "splitting"),
            "A group is split by copying the options of its backend, which those of gloo cannot be.",
            "options of gloo that can be copied",
        )
        for module in (C10D, "torch.distributed", "torch.distributed.device_mesh")
    ],
    *[
        row(
            module, "barrier", registration.lazily("groups", "waiting_on_the_host"),
            "`barrier(device_ids=[n])` takes `n` for an adapter's number: in programs for the CPU, too, and where "
            "ranks share an adapter.",
            "the CPU's backend where a group has one, as without `device_ids`",
        )
        for module in (C10D, "torch.distributed")
    ],
    row(
        DDP, "DistributedDataParallel._check_comm_hook", registration.lazily("ddp", "checking_hooks"),
        "Hooks that compress to bfloat16 are for groups of NCCL and XCCL alone.", "the question to the backend",
        "pull/63260",
    ),
    row(
        DDP, "DistributedDataParallel.register_comm_hook", registration.lazily("ddp", "registering_hooks"),
        "Collectives that a hook's callbacks call have no place among the others, unless futures are complete when "
        "they are made, as NCCL's are.", "an order of the collectives that callbacks call",
    ),
    row(
        DDP, "DistributedDataParallel._register_builtin_comm_hook",
        registration.lazily("ddp", "registering_builtin_hooks"),
        "The hooks in C++ assert that a future has a list of C++'s, which one of Python's has not.",
        "`parseCppCommHookResult` in the hook for float16, as in the reducer",
    ),
    row(
        DDP, "DistributedDataParallel._delayed_all_reduce_hook", registration.lazily("ddp", "waiting_for_delayed"),
        "Nobody waits for the gradients of `delay_all_reduce_named_params`: the work is dropped.",
        "a wait at the end of the backward pass",
    ),
    row(
        MIXED_PRECISION, "_reducer_allreduce_and_upcast_hook", registration.lazily("ddp", "filling_first_buckets"),
        "The first backward pass under `mixed_precision` reduces memory that nobody has written, on every device.",
        "`Reducer::set_mixed_precision_param_dtype` that makes the views of its buckets anew",
    ),
    row(
        FSDP_COLLECTIVES, "_get_gradient_divide_factors", registration.lazily("fsdp", "dividing_beside_sums"),
        "`set_gradient_divide_factor` has sums multiplied by NCCL (`PREMUL_SUM`), which gloo refuses.",
        "the question to the backend, as MTIA's name is one",
    ),
    row(
        C10D_IN_C, "ProcessGroup._start_coalescing", registration.lazily("coalescing", "start"),
        "gloo does not coalesce, and raises.", "a list of works where a backend does not coalesce",
    ),
    row(
        C10D_IN_C, "ProcessGroup._end_coalescing", registration.lazily("coalescing", "end"),
        "gloo does not coalesce, and raises.", "a list of works where a backend does not coalesce",
    ),
])  # fmt: skip
"""Those that programs get with their first process group."""

AT_FIRST_USE = Patches([
    row(
        "torch._C", "", torch_hooks.PINNED.install,
        "`torch.empty(pin_memory=True)`, and DistributedDataParallel with `find_unused_parameters` or `static_graph`, "
        "ask for an allocator that a Python backend cannot name.",
        "an allocator of pinned memory of Python backends", "pull/157859",
        what="the virtual function `getPinnedMemoryAllocator`",
    ),
    row(
        "sys", "excepthook", hints.hinting,
        "Names of devices are read in C++, before any code of a backend's: *did you mean* can only be said where the "
        "error is printed.",
        "the suggestion in PyTorch's own message",
    ),
    row(
        "threading", "excepthook", hints.hinting_in_threads,
        "An error that ends a thread is printed by this function instead.",
        "the suggestion in PyTorch's own message",
    ),
])  # fmt: skip
"""Those that programs get when they first use the device."""

AT_OTHER_ADAPTER = Patches(
    [
        row("torch", name, make, BARE_DEVICES, BARE_DEVICES_NEEDS, "issues/196299")
        for name, make in (
            ("Tensor.to", torch_patches.with_current_device),
            ("Tensor.new_tensor", torch_patches.with_own_device),
            ("tensor", torch_patches.with_current_device),
            ("as_tensor", torch_patches.with_current_device),
            ("asarray", torch_patches.with_current_device),
        )
    ]
    + [
        row(
            "torch.nn.parameter", "UninitializedTensorMixin._allowed_methods", torch_patches.Methods,
            "Parameters of lazy modules take the methods of a list alone: not `Tensor.to` once it is replaced.",
            "what the patch of `Tensor.to` needs", "issues/196299",
        )
    ]
)  # fmt: skip
"""Those for when another adapter than the first becomes current, one that is only described too: they cost every
call.
"""

AT_FIRST_METHOD = Patches([
    row(
        "torch", "Tensor.webgpu", functional.Accessor,
        "`x.webgpu()` moves a tensor, as every device's method does; registered methods have to be found behind the "
        "same name, as in `x.webgpu.swiglu(y)`.", "a name space of tensors for the functions of a Python backend",
    ),
])  # fmt: skip
"""Those for when a program registers a method of tensors."""

IN_A_CALL = Patches([
    row(
        "torch.compiler", "_is_compiling_flag", torch_abi.compiling,
        "Libraries read values from the device to check arguments, unless `torch.compiler.is_compiling()`; a plan is "
        "traced without values.", "a context manager that sets it",
    ),
    row(
        "weakref", "finalize._registry", torch_abi.library,
        "`torch.library.Library` takes its kernels along at exit, when threads and handlers still use the device.",
        "an option of `Library` to stay", "pull/101829",
    ),
    row(
        "torch._functorch._aot_autograd.schemas", "ViewAndMutationMeta.bw_donated_idxs", private.donate_no_buffers,
        "A compiled backward graph may not run twice: its activations are taken for buffers that it overwrites, which "
        "Inductor's does and ours does not.", "a compiler's answer which activations it overwrites",
    ),
    row(
        STORAGE, "UntypedStorage._cdata", torch_patches.set_storage_nbytes,
        "`StorageImpl::set_nbytes` cannot be reached from Python: a storage that is resized has its size written into "
        "its memory.",
        "`resizePrivateUse1Bytes` among the hooks of Python backends; from 2.13 on `_swap_data_ptr_` would do",
        "pull/177449",
    ),
    row(
        "torch._C", "", torch_guard.stand_in,
        "While a program for CUDA is translated: C++ asks the guard of a device that is named without an index, and "
        "that of a device that is not here is missing.",
        "arguments that name an absent device", what="the device guard of an absent device",
    ),
    row(
        "torch._dynamo.trace_rules", "", private.know_originals,
        "While a program for CUDA is translated: Dynamo finds its rules for functions by their names, and so loses "
        "those of functions that are replaced.", "a function that gives a function the rule of another",
        what="`get_torch_obj_rule_map()`",
    ),
    row(
        "torch._dynamo.trace_rules", "", torch_patches.know_replacement,
        "Once another adapter than the first is current: Dynamo looks for functions by their names once, and breaks "
        "graphs at those that are replaced later.", "a function that gives a function the rule of another",
        what="`get_torch_obj_rule_map()` of functions that are replaced",
    ),
    row(
        "torch.nn", "Module._compiled_call_impl", compiler.observe_module_calls,
        "While `torch.webgpu.auto_compile` is on: nobody tells that a module is called, so that it could be compiled.",
        "a global hook that takes the place of a module's call",
    ),
])  # fmt: skip
"""What a function of ours changes while it runs, or in one object; ``make`` is that function."""

PATCHES = {
    "when the device is registered, or the module imported": AT_REGISTRATION,
    "when the first process group is made": AT_FIRST_GROUP,
    "when the device is first used": AT_FIRST_USE,
    "when another adapter becomes current": AT_OTHER_ADAPTER,
    "when a method of tensors is registered": AT_FIRST_METHOD,
    "in a call": IN_A_CALL,
}
"""By when they are applied."""


def apply() -> None:
    """Applies them, each at its time. May be repeated."""
    AT_REGISTRATION.apply()
    moments = (
        (at_first_use, AT_FIRST_USE),
        (at_other_adapter, AT_OTHER_ADAPTER),
        (registration.at_first_group, AT_FIRST_GROUP),
        (functional.at_first_method, AT_FIRST_METHOD),
    )
    for moment, patches in moments:
        if patches.apply not in moment:
            moment.append(patches.apply)
