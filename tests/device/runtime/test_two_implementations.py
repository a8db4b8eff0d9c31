"""Two devices served by two implementations in one process: SwiftShader by Dawn, lavapipe by wgpu-native.

``scripts/swiftshader.sh`` brings SwiftShader; ``scripts/vulkan.sh`` lavapipe.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.device.processes import assert_ends_well

ROOT = Path(__file__).resolve().parents[3]


def icds() -> str:
    """The drivers' files, or skips the test."""
    swiftshader = [ROOT / ".swiftshader" / "vk_swiftshader_icd.json"]
    if "TORCH_WEBGPU_TEST_SWIFTSHADER" in os.environ:
        swiftshader.insert(0, Path(os.environ["TORCH_WEBGPU_TEST_SWIFTSHADER"]))
    lavapipe = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    found = next((path for path in swiftshader if path.exists()), None)
    if found is None or not lavapipe:
        pytest.skip("needs the drivers of SwiftShader (scripts/swiftshader.sh) and of lavapipe")
    return f"{found}:{lavapipe[0]}"


def test_two_implementations_in_one_process() -> None:
    pytest.importorskip("wgpudawn")
    drivers = icds()
    script = f"""
        import os
        os.environ["VK_DRIVER_FILES"] = {drivers!r}
        os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
        from torch_webgpu.runtime import runtime
        from torch_webgpu.runtime.adapters import implementation

        def listed(name, driver):
            return [one for one in implementation(name).adapters() if driver in one.info["device"]][:1]

        # By itself it would have wgpu-native serve both.
        runtime.adapters = lambda: listed("dawn", "SwiftShader") + listed("wgpu", "llvmpipe")
        found = runtime.devices()
        assert [device.implementation for device in found] == ["dawn", "wgpu"], found

        def train(device):
            torch.manual_seed(0)
            x, target = torch.randn(16, 8).to(device), torch.randn(16, 4).to(device)
            weight = torch.randn(8, 4).to(device).requires_grad_()
            for _ in range(3):
                loss = ((x @ weight).softmax(1) - target).square().mean()
                loss.backward()
                with torch.no_grad():
                    weight -= 0.1 * weight.grad
                    weight.grad = None
            return weight.detach()

        expected = train("cpu")
        first, second = train("webgpu:0"), train("webgpu:1")
        torch.testing.assert_close(first.cpu(), expected)
        torch.testing.assert_close(second.cpu(), expected)
        assert (first.to("webgpu:1") - second).abs().max().item() < 1e-5
        for one, other in ((0, 1), (1, 0)):  # the loss of one leaves the other alone
            found[one].opened.native.destroy()
            with pytest.raises(torch.webgpu.DeviceLostError):
                torch.ones(3, device=f"webgpu:{{one}}").sum().item()
            assert torch.ones(3, device=f"webgpu:{{other}}").sum().item() == 3
            torch.webgpu.reset_device(one)
            assert torch.ones(3, device=f"webgpu:{{one}}").sum().item() == 3
    """
    assert_ends_well(script)
