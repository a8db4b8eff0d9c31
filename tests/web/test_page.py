"""The page of an export, as a visitor uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.export import export

from .chromium import NO_ADAPTER, executable
from .server import Site

READY = "html[data-state=ready]"


class Two(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x / i, "chosen": i == 2}


@pytest.fixture(scope="module")
def folder(folders: Path) -> str:
    inputs = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 4]))
    export(Two(), inputs, folders / "page", metadata={"title": "Two <b>programs</b>"})
    return "/exports/page/index.html"


def test_run_and_check(page: Any, site: Site, folder: str) -> None:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    assert page.inner_text("h1") == "Two <b>programs</b>"
    assert page.input_value("textarea[name=x]") == "[1,2,3]"
    page.fill("textarea[name=x]", "[-1, 5, 8]")
    page.click("button.first")
    page.wait_for_selector(".output")
    assert page.locator(".output pre").all_inner_texts() == ['["-Infinity",2.5,2]', "[false,true,false]"]
    page.click("text=Check the example")
    page.wait_for_selector("html[data-difference]")
    assert float(page.get_attribute("html", "data-difference")) < 1e-6
    assert errors == []


def test_what_is_typed_wrong_is_said(page: Any, site: Site, folder: str) -> None:
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    page.fill("textarea[name=x]", "[1, 2]")
    page.click("button.first")
    page.wait_for_selector("#status.bad")
    assert "x is a float32 tensor of shape [3], not of shape [2]" in page.inner_text("#status")


def test_no_adapter_is_said_in_a_sentence(chromium: Any, site: Site, folder: str) -> None:
    other = chromium.launch(executable_path=executable(), args=[*NO_ADAPTER])
    try:
        page = other.new_page()
        page.goto(site.url + folder)
        page.wait_for_selector("html[data-state=failed]")
        assert "WebGPU" in page.inner_text("#status")
    finally:
        other.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(page: Any, site: Site, folder: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
