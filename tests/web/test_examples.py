"""The pages of ``examples/web``: exported in small, and used as a visitor would."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from .server import Site

EXAMPLES = Path(__file__).parents[2] / "examples"
READY = "html[data-state=ready]"


@pytest.fixture(scope="module")
def pages(folders: Path) -> Path:
    """The pages with a network that has hardly learned."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import web
    finally:
        sys.path.remove(str(EXAMPLES))
    for name in web.SHARED:
        (folders / "pages").mkdir(exist_ok=True)
        shutil.copyfile(web.PAGES / name, folders / "pages" / name)
    web.digits_page(folders / "pages" / "digits", "cpu", epochs=2)
    web.training_page(folders / "pages" / "training")
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
def test_training_in_the_page(page: Any, site: Site, pages: Path) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(f"{site.url}/exports/pages/training/index.html")
    page.wait_for_selector(READY, timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.click("#go")
    page.wait_for_selector("html[data-steps]", timeout=60_000)
    page.click("#go")
    assert 0 < float(page.inner_text("#loss")) < 10
    page.click("#reset")
    page.wait_for_selector("html[data-steps='0']", timeout=60_000)
    assert page.inner_text("#step") == "0"
