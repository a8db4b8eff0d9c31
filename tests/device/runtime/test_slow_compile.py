"""A compile that takes long is named while it goes on; the compiler is made slow here."""

from __future__ import annotations

import torch
from tests.unit.test_slow import Log, log  # noqa: F401  a fixture

from torch_webgpu.engine.record import engine


def test_a_slow_compile_is_named(device: torch.device, log: Log, monkeypatch) -> None:  # noqa: F811
    x = torch.linspace(0, 1, 5)
    on_device = x.to(device)
    torch.webgpu.synchronize()
    native = engine().device(0).opened.native
    create = native.create_pipeline
    waited = []

    def slow_create(*args):
        what = "webgpu: compiling the kernel mul+sin+atan+sub has taken"
        waited.append(log.wait_for(1, what))
        return create(*args)

    monkeypatch.setattr(native, "create_pipeline", slow_create)
    y = torch.sin(on_device * 0.123) - torch.atan(on_device)
    torch.webgpu.flush_batch()
    assert waited == [True], "it is said while the compiler is busy"
    torch.testing.assert_close(y.cpu(), torch.sin(x * 0.123) - torch.atan(x))


def test_a_slow_first_run_is_named_where_the_adapter_compiles_then(device, log: Log, monkeypatch) -> None:  # noqa: F811
    x = torch.linspace(0, 1, 5)
    on_device = x.to(device)
    torch.webgpu.synchronize()
    opened = engine().device(0).opened
    monkeypatch.setattr(opened.pipelines, "first_runs", [])
    finish, waited = opened.transfer.finish, []

    def slow(readback):
        what = "webgpu: the first run of mul+cos+asin+sub, which the software adapter compiles now, has taken"
        waited.append(log.wait_for(1, what))
        return finish(readback)

    monkeypatch.setattr(opened.transfer, "finish", slow)
    y = torch.cos(on_device * 0.321) - torch.asin(on_device)
    torch.testing.assert_close(y.cpu(), torch.cos(x * 0.321) - torch.asin(x))
    assert waited == [True]
    opened.pipelines.first_runs.clear()
    assert opened.pipelines.waiting() is opened.pipelines.waiting(), "nothing is watched where nothing is new"
