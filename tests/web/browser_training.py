"""What a program does on a browser's device: tests/web/test_browser_device.py runs it under ``torch-webgpu serve``."""

from __future__ import annotations

import sys
from collections import Counter

import torch
from torch import nn

from torch_webgpu.engine.record import engine


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def losses(device: str, steps: int) -> tuple[list[float], list[Counter[str]]]:
    """Trains; the losses, and what each step sent."""
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(16, 32, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    found, sent = [], []
    for _ in range(steps):
        before = counts() if device != "cpu" else Counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        sent.append((counts() if device != "cpu" else Counter()) - before)
    return found, sent


def counts() -> Counter[str]:
    """What was sent to the browser, and how often somebody waited for it."""
    return Counter(engine().device(0).opened.native.session.counts)


def raises(kind: type[Exception], call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main() -> None:
    assert torch.webgpu.get_device_properties(0).implementation == "browser"
    target = engine().device(0).target
    assert (target.int64, target.subgroups, target.immediates_bytes, target.dialect) == (False, False, 0, "tint")

    x = torch.randn(100, 7)
    torch.testing.assert_close((x.to("webgpu").softmax(1) @ x.to("webgpu").t()).cpu(), x.softmax(1) @ x.t())
    assert (torch.arange(9, device="webgpu") * 1_000_000_007).cpu().tolist() == [k * 1_000_000_007 for k in range(9)]

    expected, _ = losses("cpu", 8)
    found, sent = losses("webgpu", 8)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for step in sent[-4:]:
        asked = {name: step[name] for name in ("frames", "round_trips", "full")}
        assert asked == {"frames": 1 + step["idle"], "round_trips": 1, "full": 0}, sent
    print("steps", [(step["frames"], step["round_trips"], step["bytes"]) for step in sent], flush=True)

    model = network()
    compiled = torch.compile(network().to("webgpu"))
    batch = torch.randn(5, 32)
    torch.testing.assert_close(compiled(batch.to("webgpu")).cpu(), model(batch))

    text = raises(
        torch.webgpu.ShaderCompileError,
        lambda: torch.webgpu.compile_shader(WRONG).wrong(torch.ones(4, device="webgpu")),
    )
    assert "nonsense" in text, text
    table = torch.ones(5, 2, device="webgpu")
    raises(IndexError, lambda: table[torch.tensor([7], device="webgpu")].cpu())
    raises(torch.OutOfMemoryError, lambda: torch.empty(1 << 36, dtype=torch.uint8, device="webgpu"))
    assert (table + 1).sum().item() == 20
    large = torch.arange(6_000_000, dtype=torch.float32)  # several windows of frames
    assert torch.equal(large.to("webgpu").cpu(), large)
    event = torch.webgpu.Event()
    event.record()
    while not event.query():
        pass
    print("fine", flush=True)


WRONG = """
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn wrong(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = nonsense(1.0); }
"""

if __name__ == "__main__":
    main()
    sys.stdout.flush()
