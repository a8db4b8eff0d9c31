"""The pages of ``examples/web``: exported in small, and used as a visitor would."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .server import Site

EXAMPLES = Path(__file__).parents[2] / "examples"
READY = "html[data-state=ready]"


@pytest.fixture(scope="module")
def examples() -> Any:
    """The module ``examples/web.py``."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import web
    finally:
        sys.path.remove(str(EXAMPLES))
    return web


@pytest.fixture(scope="module")
def pages(folders: Path, examples: Any) -> Path:
    """The pages with a network that has hardly learned."""
    for name in examples.SHARED:
        (folders / "pages").mkdir(exist_ok=True)
        shutil.copyfile(examples.PAGES / name, folders / "pages" / name)
    examples.digits_page(folders / "pages" / "digits", "cpu", epochs=2)
    return folders / "pages"


def test_drawing_a_digit(page: Any, site: Site, pages: Path) -> None:
    page.goto(f"{site.url}/exports/pages/digits/index.html")
    page.wait_for_selector(READY)
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.8 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_selector("html[data-digit]")
    shares = [float(text.removesuffix(" %")) for text in page.locator("#bars span").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.6)
    assert page.inner_text("#answer b") == str(shares.index(max(shares)))
    page.click("#clear")
    assert page.locator("#answer b").count() == 0
    page.evaluate("delete document.documentElement.dataset.digit")
    page.focus("#canvas")
    page.keyboard.press("7")
    page.wait_for_selector("html[data-digit]")
    assert page.locator("#answer b").count() == 1


@pytest.mark.slow
def test_training_in_the_page(page: Any, site: Site, pages: Path, examples: Any) -> None:
    examples.training_page(pages / "training")
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(f"{site.url}/exports/pages/training/index.html")
    page.wait_for_selector(READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.click("#go")
    page.wait_for_selector("html[data-steps]")
    page.click("#go")
    assert 0 < float(page.inner_text("#loss")) < 10
    page.click("#reset")
    page.wait_for_selector("html[data-steps='0']")
    assert page.inner_text("#step") == "0"


@pytest.mark.slow
def test_generating_text(page: Any, site: Site, pages: Path, examples: Any) -> None:
    assert 5 < examples.trained_gpt2(torch.arange(examples.CONTEXT + 2), "cpu", steps=1)[1] < 10
    examples.text_page(pages / "text", "cpu", steps=0)
    page.goto(f"{site.url}/exports/pages/text/index.html")
    page.wait_for_selector(READY)
    page.focus("#go")
    page.keyboard.press("Enter")
    page.wait_for_selector("#speed:not(:empty)")  # after two tokens
    assert page.evaluate("document.activeElement.id") == "stop"
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-count]")
    assert page.inner_text("#text").startswith("Return the number of")
    assert int(page.get_attribute("html", "data-count")) > 1
    assert page.evaluate("document.activeElement.id") == "go"
    assert re.fullmatch(r"\d+ tokens, \d+(\.\d)? a second", page.inner_text("#speed"))
