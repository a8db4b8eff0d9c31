"""The page of an export, as a visitor uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.export import export

from .chromium import NO_ADAPTER, executable
from .server import POLICY, Site

READY = "html[data-state=ready]"
LOW_CONTRAST = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = numbers(colour).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor, alpha = numbers(colour)[3] ?? 1;
      if (alpha === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const low = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const {parentElement: owner, data} = walker.currentNode;
    if (!data.trim() || !owner.checkVisibility() || owner.closest('noscript, :disabled')) continue;
    const [a, b] = [luminance(getComputedStyle(owner).color), luminance(behind(owner))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([data.trim(), (a + 0.05) / (b + 0.05)]);
  }
  return low;
}"""


class Two(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x / i, "chosen": i == 2}


@pytest.fixture(scope="module")
def folder(folders: Path) -> str:
    inputs = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 4]))
    export(Two(), inputs, folders / "page", metadata={"title": "Two <b>programs</b>"})
    return "/exports/page/index.html"


@pytest.fixture(scope="module")
def weighted(folders: Path) -> str:
    export(nn.Linear(3, 2), torch.zeros(1, 3), folders / "weighted")
    return "/exports/weighted/index.html"


def test_the_page_has_the_policy(folders: Path, folder: str) -> None:
    """Also where the server sends none."""
    (policy,) = re.findall(
        r'http-equiv="Content-Security-Policy" content="([^"]*)"', (folders / "page" / "index.html").read_text()
    )
    assert policy == POLICY


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


@pytest.mark.parametrize(
    ("name", "contents", "advice"),
    [
        ("model.safetensors", None, "Reload the page to try again."),
        ("plan.json", b"{}", "It has to be exported again."),
    ],
)
def test_what_a_visitor_can_do_is_said(
    page: Any, site: Site, weighted: str, name: str, contents: bytes | None, advice: str
) -> None:
    if contents is None:
        site.missing.add(name)
    else:
        site.replaced[name] = contents
    page.goto(site.url + weighted)
    page.wait_for_selector("html[data-state=failed]")
    assert page.inner_text("#status").endswith(advice)


def test_a_lost_gpu_is_said(browser: Any, site: Site, folder: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(
        """{
          const request = globalThis.GPUAdapter?.prototype.requestDevice;
          if (request) GPUAdapter.prototype.requestDevice = async function (...args) {
            return globalThis.opened = await request.apply(this, args);
          };
        }"""
    )
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    page.evaluate("opened.destroy()")
    page.click("button.first")
    page.wait_for_selector("html[data-state=failed]")
    assert page.inner_text("#status").endswith("load the model again. Reload the page.")
    context.close()


def test_the_keyboard_reaches_all(page: Any, site: Site, folder: str) -> None:
    """In the order of the page; a button that was pressed keeps the keyboard's place."""
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert reached == ["x", "i", "Run", "Check the example", "About this model"]
    page.focus("button.first")
    page.keyboard.press("Enter")
    page.wait_for_selector(".output")
    assert page.evaluate("document.activeElement.textContent") == "Run"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page: Any, site: Site, folder: str, scheme: str) -> None:
    """Text has the contrast of WCAG's level AA with what is behind it."""
    page.emulate_media(color_scheme=scheme)
    page.goto(site.url + folder)
    page.wait_for_selector(READY)
    page.click("button.first")
    page.wait_for_selector(".output")
    page.wait_for_selector("button.first:enabled")
    try:
        assert page.evaluate(LOW_CONTRAST) == []
    finally:
        page.emulate_media(color_scheme="light")


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
