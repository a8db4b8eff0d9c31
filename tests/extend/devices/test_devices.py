"""Devices in the registry: configurations, life cycles, what is refused, and faults that reach the user."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.webgpu_double import CheckedWebGPU

from torch.webgpu import registry  # isort: skip

NAME = "test-device"


def wgpu() -> registry.Implementation:
    return registry.get_device_config("wgpu").initialize()


@pytest.fixture
def needs_wgpu() -> None:
    try:
        there = wgpu().adapters()
    except (ImportError, OSError):
        there = []
    if not there:
        pytest.skip("wgpu-native has no adapter on this machine")


@pytest.fixture
def unregistered() -> Iterator[None]:
    """The device of a test is gone at its end."""
    yield
    if registry.has_device(NAME):
        registry.unregister_device(NAME)


pytestmark = pytest.mark.usefixtures("unregistered")


def test_what_the_page_shows_runs(needs_wgpu: None) -> None:
    page = (Path(__file__).parents[3] / "docs" / "devices.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    variables: dict[str, Any] = {}
    exec(block, variables)
    with pytest.raises(torch.webgpu.WebGPUError, match="was unregistered"):
        variables["x"].cpu()


# ---- life cycles


def test_a_device_is_registered_used_and_unregistered() -> None:
    double = CheckedWebGPU(NAME)
    assert not registry.has_device(NAME)
    handle = registry.register_device(registry.DeviceConfig(NAME, lambda: double))
    assert registry.has_device(NAME)
    assert NAME in registry.list_devices()
    assert NAME in registry.list_custom_devices()
    assert registry.get_device(NAME).origin == "registered"
    with pytest.raises(registry.NotRegisteredError, match=f"initialize_device\\('{NAME}'\\)"):
        registry.get_device_context(NAME)
    context = registry.initialize_device(NAME)
    assert registry.initialize_device(NAME) == registry.get_device_context(NAME) == context
    assert context.ready
    assert torch.webgpu.get_device_properties(context.device).implementation == NAME
    x = torch.arange(6.0).view(2, 3).to(context.device)
    assert torch.equal(x[1].cpu(), torch.arange(3.0, 6.0))  # the double moves bytes, and computes nothing
    handle.unregister()
    handle.unregister()  # nothing happens
    assert not registry.has_device(NAME)
    assert not context.ready
    assert [device.closed for device in double.devices] == [True]
    for use in (x.cpu, lambda: torch.ones(3, device=context.device).cpu()):
        with pytest.raises(RuntimeError, match=f"cannot be used: the device '{NAME}' was unregistered"):
            use()
    with pytest.raises(LookupError, match="there is no device"):
        registry.get_device(NAME)
    assert torch.ones(3, device="webgpu:0").sum().item() == 3


def test_the_handle_is_a_context_manager() -> None:
    with registry.register_device(registry.DeviceConfig(NAME, CheckedWebGPU)) as handle:
        assert handle.is_registered
        assert registry.has_device(NAME)
    assert not handle.is_registered
    assert not registry.has_device(NAME)


def test_it_can_be_registered_again_after_it_was_unregistered() -> None:
    devices = []
    for _ in range(2):
        with registry.register_device(registry.DeviceConfig(NAME, CheckedWebGPU)):
            devices.append(registry.initialize_device(NAME).device)
            assert torch.ones(2, device=devices[-1]).cpu().shape == (2,)
    assert devices[1].index == devices[0].index + 1


def test_a_name_is_registered_once() -> None:
    config = registry.DeviceConfig(NAME, CheckedWebGPU)
    with registry.register_device(config):
        with pytest.raises(registry.AlreadyRegisteredError, match="is registered already"):
            registry.register_device(config)
        assert registry.get_device_config(NAME) is config
    with pytest.raises(ValueError, match="'wgpu' is registered already"):
        registry.register_device(registry.DeviceConfig("wgpu", CheckedWebGPU))


def test_threads_that_register_one_name_do_it_once() -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def register() -> None:
        barrier.wait()
        try:
            registry.register_device(registry.DeviceConfig(NAME, CheckedWebGPU))
            outcomes.append("registered")
        except registry.AlreadyRegisteredError:
            outcomes.append("taken")

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["registered", *["taken"] * 7]


def test_threads_that_initialize_a_device_make_it_once() -> None:
    double = CheckedWebGPU(NAME)
    started: list[int] = []

    def start() -> CheckedWebGPU:
        started.append(1)
        return double

    registry.register_device(registry.DeviceConfig(NAME, start))
    contexts: list[registry.DeviceContext] = []
    threads = [threading.Thread(target=lambda: contexts.append(registry.initialize_device(NAME))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contexts) == 8
    assert len({context.devices for context in contexts}) == 1
    assert started == [1]


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "My Device"}, "'My Device' cannot be the name of a device"),
        ({"name": "auto"}, "not 'auto'"),
        ({"initialize": CheckedWebGPU("x")}, "has to be a function"),
        ({"create_buffer": 3}, "create_buffer of 'test-device' is 3, and has to be a function"),
        ({"calls": {"create_bufer": print}}, r"no call 'create_bufer' \(did you mean 'create_buffer'\?\)"),
        ({"calls": {"map": print}, "read_buffer": print}, "two functions for map"),
    ],
)
def test_a_configuration_that_contradicts_itself(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(registry.InvalidConfigError, match=says) as caught:
        registry.DeviceConfig(**{"name": NAME, "initialize": CheckedWebGPU, **arguments})
    assert isinstance(caught.value, ValueError)


def test_a_name_that_is_not_there_is_a_lookup_error_with_the_nearest() -> None:
    for ask in (registry.get_device, registry.get_device_config, registry.get_device_context,
                registry.initialize_device, registry.unregister_device):  # fmt: skip
        with pytest.raises(LookupError, match=r"there is no device 'wgpuu' \(did you mean 'wgpu'\?\)"):
            ask("wgpuu")


def test_built_in_devices_are_not_the_programs_to_unregister() -> None:
    with pytest.raises(registry.InvalidConfigError, match="'wgpu' is not the program's to unregister"):
        registry.unregister_device("wgpu")
    assert registry.has_device("wgpu")
    assert "wgpu" not in registry.list_custom_devices()


class Broken(CheckedWebGPU):
    """Lists what the test says."""

    def __init__(self, what: Any) -> None:
        super().__init__(NAME)
        self.what = what

    def adapters(self) -> list[registry.Adapter]:
        if isinstance(self.what, Exception):
            raise self.what
        return [self.what(self)]


def fails_to_start() -> registry.Implementation:
    raise OSError("libgpu.so: cannot open")


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (fails_to_start, "does not start: OSError: libgpu.so: cannot open"),
        (lambda: 3, "no Implementation: it has no dialect, version, adapters, open"),
        (lambda: Broken(RuntimeError("no driver")), "cannot list its adapters: RuntimeError: no driver"),
        (
            lambda: Broken(lambda self: registry.Adapter(self, None, {"device": "x"}, frozenset(), {})),
            "lacks in its info: vendor, architecture",
        ),
    ],
)
def test_a_device_that_does_not_start(start: Any, says: str) -> None:
    registry.register_device(registry.DeviceConfig(NAME, start))
    count = torch.webgpu.device_count()
    with pytest.raises(registry.RegistrationFailedError, match=says) as caught:
        registry.initialize_device(NAME)
    assert isinstance(caught.value, RuntimeError)
    assert torch.webgpu.device_count() == count


# ---- what a configuration changes


def test_functions_take_the_place_of_calls(needs_wgpu: None) -> None:
    seen: list[str] = []

    def watch(name: str, call: str) -> Any:
        def function(native: registry.NativeDevice, *args: Any) -> Any:
            seen.append(name)
            return getattr(native, call)(*args)

        return function

    config = registry.DeviceConfig(
        NAME,
        wgpu,
        create_buffer=watch("create_buffer", "create_buffer"),
        write_buffer=watch("write_buffer", "write_buffer"),
        read_buffer=watch("read_buffer", "map"),
        dispatch=watch("dispatch", "dispatch_workgroups"),
        sync=watch("sync", "poll"),
        calls={"create_pipeline": watch("create_pipeline", "create_pipeline")},
    )
    with registry.register_device(config):
        device = registry.initialize_device(NAME).device
        x = torch.arange(5.0).to(device)
        assert torch.equal((x * 2 + 1).cpu(), torch.arange(5.0) * 2 + 1)
        torch.webgpu.synchronize(device)
    assert set(seen) == {"create_buffer", "write_buffer", "read_buffer", "dispatch", "sync", "create_pipeline"}
    assert seen.count("dispatch") == 1


def test_capabilities_are_the_most_that_adapters_offer(needs_wgpu: None) -> None:
    most = registry.DeviceCapabilities(features=frozenset(), limits={"max-buffer-size": 1 << 16})
    with registry.register_device(registry.DeviceConfig(NAME, wgpu, capabilities=most)):
        device = registry.initialize_device(NAME).device
        offered = torch.webgpu.get_capabilities(device)
        assert offered.features == []
        assert offered.limits.maxBufferSize == 1 << 16
        big = torch.arange(1000, device=device)
        assert torch.equal((big * 3).cpu(), torch.arange(1000) * 3)  # 64-bit integers are emulated
        with pytest.raises(torch.OutOfMemoryError, match="max-buffer-size"):
            torch.ones(1 << 15).to(device)
    unknown = registry.DeviceCapabilities(limits={"max-bufer-size": 1})
    registry.register_device(registry.DeviceConfig(NAME, wgpu, capabilities=unknown))
    with pytest.raises(registry.RegistrationFailedError, match="did you mean 'max-buffer-size'"):
        registry.initialize_device(NAME)


# ---- faults reach the user as PyTorch's exceptions, and the session goes on


@pytest.fixture
def faulty(faults: ModuleType, needs_wgpu: None) -> Iterator[torch.device]:
    """A device of the example that fails on purpose."""
    if not registry.has_device("faults"):
        registry.register_device(faults.CONFIG)
    device = registry.initialize_device("faults").device
    yield device
    faults.FAULTS.clear()


def works(device: torch.device, n: int = 100) -> bool:
    x = torch.arange(n).to(device)
    return bool(torch.equal((x * 2).cpu(), torch.arange(n) * 2))


def test_out_of_memory_is_torchs_and_the_session_goes_on(faults: ModuleType, faulty: torch.device) -> None:
    assert works(faulty)
    faults.FAULTS.inject("out-of-memory", times=1000)  # an allocation is tried again, and the call by itself, too
    with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate 23\.00 MiB"):
        (torch.arange(3_000_000, device=faulty) * 2).cpu()
    faults.FAULTS.clear()
    assert works(faulty)


def test_one_failed_allocation_is_tried_again(faults: ModuleType, faulty: torch.device) -> None:
    before = torch.webgpu.memory_stats(faulty)["num_ooms"]
    faults.FAULTS.inject("out-of-memory")
    assert torch.equal((torch.arange(5_000_000, device=faulty) * 2).cpu(), torch.arange(5_000_000) * 2)
    assert torch.webgpu.memory_stats(faulty)["num_ooms"] == before


def test_a_failed_pipeline_is_a_runtime_error_and_the_session_goes_on(faults: ModuleType, faulty: torch.device) -> None:
    x = torch.linspace(0.1, 1, 7).to(faulty)
    torch.webgpu.synchronize(faulty)
    faults.FAULTS.inject("failed-pipeline", times=1000)
    with pytest.raises(torch.webgpu.ShaderCompileError, match=r"the pipeline .* was refused"):
        (x.log2() - x.digamma()).cpu()
    faults.FAULTS.clear()
    assert works(faulty)
    torch.testing.assert_close((x.log2() - x.digamma()).cpu(), x.cpu().log2() - x.cpu().digamma())


def test_a_failed_map_is_a_runtime_error_and_the_session_goes_on(faults: ModuleType, faulty: torch.device) -> None:
    x = torch.arange(5.0).to(faulty) + 1
    faults.FAULTS.inject("failed-map")
    with pytest.raises(RuntimeError, match=r"mapping \d+ bytes failed"):
        x.cpu()
    assert works(faulty)
    assert torch.equal(x.cpu(), torch.arange(5.0) + 1)


@pytest.mark.parametrize("at", [1, 2])
def test_a_lost_device_says_so_and_can_be_opened_anew(faults: ModuleType, faulty: torch.device, at: int) -> None:
    x = torch.ones(5, device=faulty) + 1
    assert torch.equal(x.cpu(), torch.full((5,), 2.0))
    faults.FAULTS.inject("lost-device", at)
    for _ in range(at - 1):
        assert torch.equal((x * 3).cpu(), torch.full((5,), 6.0))
    with pytest.raises(torch.webgpu.DeviceLostError, match=f"webgpu:{faulty.index} .* was lost"):
        (x * 3).cpu()
    with pytest.raises(torch.webgpu.DeviceLostError):
        torch.ones(3, device=faulty).cpu()
    assert works(torch.device("webgpu:0"))  # another device does not mind
    torch.webgpu.reset_device(faulty)
    assert works(faulty)
