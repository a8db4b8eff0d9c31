"""A browser for all tests of this folder; all are skipped, with the reason, where there is none.

It is Chromium, or Firefox with ``WEB_BROWSER=firefox``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_webgpu
from torch_webgpu.export.folder import copy_runtime

from . import firefox
from .chromium import FLAGS, PATIENCE_MS, executable, missing, tensor_of
from .server import Site

HERE = Path(__file__).parent
NewTab = Callable[[], AbstractContextManager[Any]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = firefox.missing() if firefox.wanted() else missing()
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        needed = {"browser", "new_tab"} & set(getattr(item, "fixturenames", ()))
        if needed and reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif firefox.wanted() and not needed:
            item.add_marker(pytest.mark.skip(reason="is no test of a browser: it runs with Chromium's"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """What starts browsers."""
    if firefox.wanted():
        pytest.skip("this test starts Chromiums")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture(scope="session")
def browser(chromium: Any) -> Iterator[Any]:
    found = chromium.launch(executable_path=executable(), args=[*FLAGS])
    yield found
    found.close()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What exports of tests are written into."""
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="session")
def session_site(folders: Path) -> Iterator[Site]:
    copy_runtime(folders / "runtime")  # as it is exported
    device = Path(torch_webgpu.__file__).parent / "runtime" / "browser" / "page"
    site = Site({"/runtime/": folders / "runtime", "/exports/": folders, "/device/": device, "/": HERE})
    yield site
    site.close()


@pytest.fixture
def site(session_site: Site) -> Site:
    session_site.well()
    return session_site


@pytest.fixture(scope="session")
def new_tab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewTab]:
    """What opens tabs, which are closed again after it."""
    if firefox.wanted():
        with firefox.firefox(tmp_path_factory.mktemp("firefox")) as opened:
            yield opened.new_tab
        return
    browser = request.getfixturevalue("browser")

    @contextmanager
    def opening() -> Iterator[Any]:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()
        context.close()

    yield opening


@pytest.fixture(scope="session")
def session_page(new_tab: NewTab) -> Iterator[Any]:
    with new_tab() as page:
        yield page


@pytest.fixture
def page(session_page: Any, site: Site) -> Iterator[Any]:
    """An empty page with the runtime and ``page.js`` loaded, and nothing kept from other tests."""
    session_page.set_viewport_size({"width": 1280, "height": 720})
    session_page.goto(f"{site.url}/empty.html")
    session_page.wait_for_selector("html[data-ready]", state="attached")
    session_page.evaluate("caches.delete('torch-webgpu')")
    yield session_page
    assert not session_page.evaluate("globalThis.violations ?? []")


@pytest.fixture
def example(page: Any) -> Callable[[str], dict[str, dict[str, torch.Tensor]]]:
    """Runs the example of an export in the page: program → output → tensor."""

    def run(name: str) -> dict[str, dict[str, torch.Tensor]]:
        results = page.evaluate("url => runExample(url)", f"/exports/{name}/")
        return {p: {n: tensor_of(t) for n, t in outputs.items()} for p, outputs in results.items()}

    return run
