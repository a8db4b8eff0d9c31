"""Every patch of PyTorch has a canary: a test that fails when PyTorch needs the patch no longer, or has changed.

Three kinds: a program that works with the patch, and fails as the row says without it; an assertion about PyTorch; a
test elsewhere, which is about the device, too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.device.processes import assert_ends_well
from tests.patch_programs import ENDS, NO_INDUCTOR, PROGRAMS, STORAGE

from torch_webgpu import patches
from torch_webgpu.patching import Patch

pytestmark = pytest.mark.timeout(600)  # a process for each program: minutes on a busy machine
ROOT = Path(__file__).resolve().parents[1]
ROWS = {patch.name: patch for rows in patches.PATCHES.values() for patch in rows}

HELPERS = """
import contextlib, io, os, threading
from torch_webgpu import patches
from torch_webgpu.engine.current import set_current_device

def storage():
    return torch.ones(2, device="webgpu").untyped_storage()

def refused(call):
    try:
        call()
    except RuntimeError as error:
        if "cpu()" not in str(error):
            raise
    else:
        raise AssertionError("not refused")

def backward_on_second():
    x = torch.ones(2, device="webgpu:1", requires_grad=True)
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]

def unknown_device():
    torch.ones(1, device="webgpu")
    try:
        torch.device("webpgu")
    except RuntimeError as error:
        return error

def printed():
    error = unknown_device()
    with contextlib.redirect_stderr(io.StringIO()) as text:
        sys.excepthook(type(error), error, None)
    return text.getvalue()

def printed_of_thread():
    error = unknown_device()
    with contextlib.redirect_stderr(io.StringIO()) as text:
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, None)))
    return text.getvalue()

def assert_current(make):
    if NAME not in removed:
        patches.AT_OTHER_ADAPTER.apply()
    set_current_device(1)
    assert make().device.index == 1, "of the first adapter"

def assert_has_method():
    from torch_webgpu.extend import functional
    if NAME not in removed:
        functional.register_method("twice", lambda x: x * 2)
    assert torch.ones(2).webgpu.twice().tolist() == [2, 2]
    assert torch.ones(2).webgpu().device.type == "webgpu"

def remove(row):
    *path, name = row.target.split(".")
    owner = sys.modules[row.module]
    for part in path:
        owner = getattr(owner, part)
    assert getattr(owner, name).from_torch_webgpu
    setattr(owner, name, row.plain)

def outcome(program):
    try:
        exec(program, globals())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"

rows = {patch.name: patch for group in patches.PATCHES.values() for patch in group}
removed = set()
for NAME, program in PROGRAMS.items():
    if pid := os.fork():  # before the device is used, which processes that are forked cannot do after it
        print(repr((NAME, "ends", os.waitpid(pid, 0)[1])), flush=True)
        continue
    print(repr((NAME, "with", outcome(program))), flush=True)
    removed.add(NAME)
    remove(rows[NAME])
    print(repr((NAME, "without", outcome(program))), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], object]:
    """By row and case ("with", "without" the patch, "ends" the process): what came of the row's program."""
    programs = {name: program for name, (program, _) in PROGRAMS.items()}
    script = f"import sys, torch, torch_webgpu\nPROGRAMS = {programs!r}\n{HELPERS}"
    environment = os.environ | {"TORCH_WEBGPU_COPIES": "2"}  # one adapter opened twice does as two
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    rows = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("('")]
    return {(name, case): value for name, case, value in rows}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_patch_it_fails(outcomes: dict[tuple[str, str], object], name: str) -> None:
    assert outcomes[name, "with"] == "works"
    if name == "torch.cuda.nccl.is_available" and torch.version.cuda is not None:
        pytest.skip("this build has NCCL")
    if PROGRAMS[name][1] == ENDS:
        assert outcomes[name, "ends"] != 0
        assert (name, "without") not in outcomes
    else:
        assert PROGRAMS[name][1] in str(outcomes[name, "without"])


# What ``torch.accelerator`` gets of C++: an error; an answer that is right for one adapter, and no more; the end.
ACCELERATOR = {
    "synchronizeDevice": "doesn't support synchronizing",
    "isAllocatorInitialized": "device_allocator INTERNAL ASSERT",
    "emptyCache": "device_allocator INTERNAL ASSERT",
    "emptyHostCache": ENDS,
    "getDeviceStats": "device_allocator INTERNAL ASSERT",
    "resetAccumulatedStats": "device_allocator INTERNAL ASSERT",
    "resetPeakStats": "device_allocator INTERNAL ASSERT",
    "getDeviceCapability": "doesn't support getting device capabilities",
    "getMemoryInfo": "device_allocator INTERNAL ASSERT",
    "getDeviceIndex": "0 of the first adapter",
    "setDeviceIndex": "0 of the first adapter",
    "exchangeDevice": "0 of the first adapter",
    "maybeExchangeDevice": "0 of the first adapter",
    "getStream": "0 of the first adapter",
    "setStream": "0 of the first adapter",
}


def accelerator_hooks_fail() -> None:
    """Each in a process that is forked for it, since one of them ends it."""
    script = """
    import os
    expected = eval(os.environ["EXPECTED"])
    plain = {name: getattr(torch._C, f"_accelerator_{name}", None) for name in expected}
    plain = {name: getattr(hook, "__wrapped__", None) for name, hook in plain.items() if hook is not None}
    assert None not in plain.values(), plain
    for name, hook in plain.items():
        if pid := os.fork():
            status = os.waitpid(pid, 0)[1]
            if status:
                print(name, "the process ends", flush=True)
            continue
        torch.ones(1, device="webgpu")  # two of them do nothing before
        try:
            if name in ("synchronizeDevice", "getDeviceStats", "resetAccumulatedStats", "resetPeakStats",
                        "getDeviceCapability", "getMemoryInfo"):
                hook(0)
            elif name == "setStream":
                hook(torch.webgpu.Stream())
                print(name, 0, "of the first adapter")
            elif name == "getStream":
                print(name, hook(1).device_index, "of the first adapter")
            elif name in ("setDeviceIndex", "exchangeDevice", "maybeExchangeDevice"):
                hook(1)
                print(name, plain["getDeviceIndex"](), "of the first adapter")
            elif name == "getDeviceIndex":
                print(name, hook(), "of the first adapter")
            else:
                hook()
        except RuntimeError as error:
            print(name, str(error).splitlines()[0])
        sys.stdout.flush()
        os._exit(0)
    """
    out = assert_ends_well(script, EXPECTED=repr(ACCELERATOR))
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    here = {name: text for name, text in ACCELERATOR.items() if hasattr(torch._C, f"_accelerator_{name}")}
    assert lines.keys() == here.keys() == patches.HOOKS.keys() & here.keys()
    assert [name for name, text in here.items() if text not in lines[name]] == []


def multi_tensor_functions_take_lists_of_python() -> None:
    """Also: each is one that is replaced, which depends on how it is written."""
    functions = [
        function
        for name, module in sys.modules.items()
        if name.startswith("torch.optim.")
        for function in [getattr(module, f"_multi_tensor_{name.rpartition('.')[2]}", None)]
        if function is not None
    ]
    assert len(functions) >= 10
    assert [f for f in functions if "_foreach_" not in " ".join(f.__wrapped__.__code__.co_names)] == []
    assert isinstance(torch._foreach_mul([torch.ones(1)], 2), (list, tuple))


def inductor_has_no_code_generator() -> None:
    """Of the backend by its name: a process without the patch looks it up and gets Inductor's."""
    script = """
    compile_fx = torch._dynamo.lookup_backend("inductor")
    plain = compile_fx.__wrapped__
    x = torch.ones(1, device="webgpu")
    torch.compile(torch.sin, backend=compile_fx)(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=os.environ["EXPECTED"]):
        torch.compile(torch.sin, backend=plain)(x)
    """
    assert_ends_well(script, EXPECTED=NO_INDUCTOR)


def dynamo_would_trace_us() -> None:
    script = f"""
import sys, torch
from torch._dynamo import trace_rules
assert "torch_webgpu" not in sys.modules
assert not trace_rules.check_file({str(ROOT / "src" / "torch_webgpu" / "engine" / "record.py")!r}).skipped
"""
    run_without_us(script)


def run_without_us(script: str) -> None:
    """In a process that does not import this package."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def nothing_public_sets_that_we_compile() -> None:
    names = [name for name in dir(torch.compiler) if "compiling" in name]
    assert names == ["_is_compiling_flag", "is_compiling", "is_dynamo_compiling"]
    assert "_is_compiling_flag" in torch.compiler.is_compiling.__code__.co_names


def libraries_unregister_at_exit() -> None:
    script = """
from weakref import finalize
import torch
library = torch.library.Library("aten", "IMPL")
assert [f.atexit for f in finalize._registry if f.peek() and f.peek()[0] is library] == [True]
"""
    run_without_us(script)


def sizes_of_storages_cannot_be_set() -> None:
    names = {name for name in dir(torch.UntypedStorage) if "nbytes" in name}
    assert names == {"nbytes"}
    hooks = {name for name in dir(torch._C._acc.PrivateUse1Hooks) if not name.startswith("_")}
    assert hooks == {"has_primary_context", "is_available", "is_built"}


def an_absent_device_has_no_guard() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this build has CUDA's guard")
    script = """
    from torch_webgpu.aten.dispatch import torch_guard
    from torch_webgpu.translation import session
    torch_guard.stand_in = lambda absent, present: None
    session.enable("webgpu")
    assert torch.ones(1).to("cuda:0").device.type == "webgpu"
    with pytest.raises(RuntimeError, match="not linked with support for cuda"):
        torch.ones(1).to("cuda")
    session.disable()
    """
    assert_ends_well(script)


def dynamo_loses_rules_of_functions_that_are_replaced() -> None:
    script = """
import torch
original = torch.cuda.current_device
torch.cuda.current_device = lambda: 0
from torch._dynamo import trace_rules
rules = trace_rules.get_torch_obj_rule_map()
assert torch.cuda.current_device in rules
assert original not in rules
"""
    run_without_us(script)


def dynamo_does_not_know_what_is_replaced_later() -> None:
    script = """
import torch
from torch._dynamo import trace_rules
rules, original = trace_rules.get_torch_obj_rule_map(), torch.tensor
assert original in rules
torch.tensor = lambda *args, **kwargs: original(*args, **kwargs)
assert torch.tensor not in trace_rules.get_torch_obj_rule_map()
"""
    run_without_us(script)


def kernels_of_another_device_go_through_python() -> None:
    """A library gives kernels, and takes functions of Python alone, which become the operator's."""
    script = """
import warnings
import torch
from torch_webgpu.aten.dispatch.torch_dispatch_table import shares_kernel
from torch_webgpu.aten.tensors.views import SHARED_WITH_CPU
assert all(map(shares_kernel, SHARED_WITH_CPU))
view = torch.ops.aten.view.default
kernel = torch.library.get_kernel(view, "CPU")
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
library = torch.library.Library("aten", "IMPL")
try:
    library.impl(view, kernel, "PrivateUse1", allow_override=True)
    raise SystemExit("it takes kernels")
except TypeError:
    pass
warnings.simplefilter("ignore")
library.impl(view, lambda *args: kernel.call_boxed(keys, *args), "PrivateUse1", allow_override=True)
assert not shares_kernel(view)
assert torch.ones(2, 3, device="webgpu").view(6).tolist() == [1.0] * 6
"""
    assert_ends_well(script)


# Row → what is asserted of PyTorch.
PROPERTIES: dict[str, Callable[[], None]] = {
    "torch._C: `_accelerator_*`": accelerator_hooks_fail,
    "torch.optim: every `_multi_tensor_*` of the optimizers": multi_tensor_functions_take_lists_of_python,
    "torch._dynamo.backends.inductor: `inductor`, and its entry in the registry": inductor_has_no_code_generator,
    "torch._dynamo.trace_rules: the list of modules that are skipped": dynamo_would_trace_us,
    "torch.compiler._is_compiling_flag": nothing_public_sets_that_we_compile,
    "weakref.finalize._registry": libraries_unregister_at_exit,
    "torch._C: the device guard of an absent device": an_absent_device_has_no_guard,
    "torch._C: entries of view operators in the dispatcher's table": kernels_of_another_device_go_through_python,
    "torch._dynamo.trace_rules: `get_torch_obj_rule_map()`": dynamo_loses_rules_of_functions_that_are_replaced,
    "torch._dynamo.trace_rules: `get_torch_obj_rule_map()` of functions that are replaced": (
        dynamo_does_not_know_what_is_replaced_later
    ),
    f"{STORAGE}._cdata": sizes_of_storages_cannot_be_set,
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_pytorch_is_as_the_patch_expects(name: str) -> None:
    PROPERTIES[name]()


def test_guards_of_python_backends_answer_their_type_alone() -> None:
    """What the rows about adapters, streams and events have in common."""
    assert [name for name in vars(torch._C._acc.DeviceGuard) if not name.startswith("_")] == ["type_"]


# Row → the test that is its canary, elsewhere.
ELSEWHERE = {
    "torch._C: virtual functions of the device guard": (
        "tests/device/autograd/test_backward_exceptions.py::test_canary_another_python_backend_still_ends_the_process"
    ),
    "torch._C: the virtual function `getPinnedMemoryAllocator`": (
        "tests/device/tensors/test_pinned_allocator.py::test_canary_python_backends_name_no_allocator"
    ),
    "torch._refs: functions below `torch._disable_dynamo`": (
        "tests/unit/test_first_step.py::test_pytorch_itself_still_imports_it"
    ),
    "torch._ops: `_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS`": (
        "tests/device/nn/test_flex_attention.py::test_higher_order_operators_still_stop_at_the_autocast_key"
    ),
    "torch._tensor_str._tensor_str": "tests/device/tensors/test_storage.py::test_printing_would_still_need_float64",
    "torch.Tensor.__dlpack_device__": (
        "tests/device/tensors/test_sharing.py::test_canary_pytorch_names_no_dlpack_device_of_python_backends"
    ),
    "torch.amp.grad_scaler.GradScaler.unscale_": (
        "tests/device/autograd/test_amp.py::test_unscaling_still_asks_for_float64"
    ),
    "torch._C._conv_determine_backend_memory_format": (
        "tests/device/nn/test_conv.py::test_fake_convolutions_are_laid_out_as_real_ones"
    ),
    "torch: `Generator`, or the call of its metaclass": (
        "tests/device/random/test_generators.py::test_generators_still_have_no_python_hook"
    ),
    "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta.bw_donated_idxs": (
        "tests/compile/test_autograd_cache.py::test_without_the_patch_the_second_is_refused"
    ),
    "torch.nn.Module._compiled_call_impl": (
        "tests/compile/test_auto_compile.py::test_a_call_still_asks_for_what_is_compiled"
    ),
    "torch.nn.attention.flex_attention._validate_device": (
        "tests/device/nn/test_flex_attention.py::test_devices_are_still_listed"
    ),
    **dict.fromkeys(
        [f"{module}.autograd_registration_check" for module in patches.opcheck.MODULES],
        "tests/device/api/test_opcheck.py::test_devices_are_still_listed",
    ),
    "torch._C: `_broadcast`, `_broadcast_coalesced`, `_scatter`, `_gather` and their forms with `out`": (
        "tests/distributed/test_data_parallel.py::test_canary_copies_are_in_builds_for_cuda_alone"
    ),
    **{
        name: f"tests/distributed/test_canaries.py::{canary}"
        for names, canary in (
            ([f"{patches.C10D}: the backend `webgpu`"], "test_there_is_no_backend_for_the_device"),
            ([f"{patches.C10D}._new_process_group_helper"], "test_groups_of_gloo_take_listed_devices"),
            (
                [f"{module}.destroy_process_group" for module in (patches.C10D, "torch.distributed")],
                "test_groups_are_destroyed_without_waiting",
            ),
            (
                [
                    *[
                        f"{module}.split_group"
                        for module in (patches.C10D, "torch.distributed", "torch.distributed.device_mesh")
                    ],
                    f"{patches.C10D_IN_C}.ProcessGroup._start_coalescing",
                    f"{patches.C10D_IN_C}.ProcessGroup._end_coalescing",
                ],
                "test_gloo_neither_splits_nor_coalesces",
            ),
            (
                [f"{module}.barrier" for module in (patches.C10D, "torch.distributed")],
                "test_barriers_take_numbers_of_processes_for_those_of_devices",
            ),
            ([f"{patches.DDP}.DistributedDataParallel._check_comm_hook"], "test_hooks_for_bfloat16_are_still_refused"),
            (
                [f"{patches.DDP}.DistributedDataParallel.register_comm_hook"],
                "test_callbacks_still_run_when_results_are_there",
            ),
            (
                [f"{patches.DDP}.DistributedDataParallel._delayed_all_reduce_hook"],
                "test_delayed_gradients_are_still_not_waited_for",
            ),
            (
                [f"{patches.FSDP_COLLECTIVES}._get_gradient_divide_factors"],
                "test_gradients_are_still_divided_in_the_sum",
            ),
            (
                [f"{patches.DDP}.DistributedDataParallel._register_builtin_comm_hook"],
                "test_builtin_hooks_still_want_a_list_of_tensors",
            ),
            (
                [f"{patches.MIXED_PRECISION}._reducer_allreduce_and_upcast_hook"],
                "test_the_first_buckets_are_still_not_written",
            ),
            (
                [name for name in ROWS if name.startswith(f"{patches.C10D_IN_C}.Work.")],
                "test_works_of_python_answer_two_questions",
            ),
        )
        for name in names
    },
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_canary_is_there(name: str) -> None:
    file, _, function = ELSEWHERE[name].partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("patch", ROWS.values(), ids=ROWS)
def test_every_patch_has_a_canary(patch: Patch) -> None:
    assert [patch.name in canaries for canaries in (PROGRAMS, PROPERTIES, ELSEWHERE)].count(True) == 1


def test_no_canary_is_of_nothing() -> None:
    assert {*PROGRAMS, *PROPERTIES, *ELSEWHERE} == ROWS.keys()
    assert len(ROWS) == sum(map(len, patches.PATCHES.values()))


@pytest.mark.parametrize("patch", ROWS.values(), ids=ROWS)
def test_every_patch_says_why(patch: Patch) -> None:
    assert patch.reason.endswith(".")
    assert patch.needs
    assert patch.versions
    assert patch.upstream is None or patch.upstream.startswith("https://github.com/pytorch/pytorch/")
    assert bool(patch.target) != bool(patch.what)


def test_applying_them_again_changes_nothing() -> None:
    script = """
    from torch_webgpu import patches
    from torch_webgpu.engine.record import at_first_use
    import torch._dynamo
    torch.ones(1, device="webgpu")
    rows = [*patches.AT_REGISTRATION, *patches.AT_FIRST_USE]
    before = [patch.plain for patch in rows]
    hook, calls = sys.excepthook, len(at_first_use)
    accelerator = torch._C._accelerator_getStream
    patches.apply()
    patches.AT_FIRST_USE.apply()
    assert all(patch.plain is plain for patch, plain in zip(rows, before, strict=True))
    assert (sys.excepthook, len(at_first_use), torch._C._accelerator_getStream) == (hook, calls, accelerator)
    """
    assert_ends_well(script)
