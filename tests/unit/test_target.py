"""Targets are values: JSON gives them back, and what is no target is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torch_webgpu.errors import WebGPUError
from torch_webgpu.target import MatrixConfig, Target, named, names

ALL = names()


def test_these_are_described() -> None:
    assert ALL == (
        "adreno", "amd-integrated", "apple-dawn", "browser", "chrome", "d3d12", "h200-dawn", "intel-integrated",
        "lavapipe", "mali", "metal", "swiftshader", "warp",
    )  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_json_gives_the_target_back(name: str) -> None:
    target = named(name)
    assert target.name == name
    assert Target.from_json(target.to_json()) == target
    assert Target.from_json(target.to_json()).to_json() == target.to_json()
    assert hash(replace(target, name="another")) == hash(target)


def test_every_page_gets_what_browser_says() -> None:
    """The limits that WebGPU guarantees: https://www.w3.org/TR/webgpu/#limit-default."""
    browser = named("browser")
    assert (browser.max_buffers, browser.workgroup_bytes, browser.workgroup_threads) == (8, 16384, 256)
    assert (browser.max_binding_bytes, browser.max_buffer_bytes) == (128 << 20, 256 << 20)
    assert not any((browser.int64, browser.float16, browser.float64, browser.immediates_bytes, browser.subgroups))
    assert browser.checks_bounds
    assert not any(named(name).checks_bounds for name in ALL if name not in ("browser", "chrome"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"int63": True}, "it has no 'int63' .did you mean 'int64'"),
        ({"max_buffers": -1}, "max_buffers is -1"),
        ({"max_buffers": True}, "max_buffers is True"),
        ({"max_buffers": "8"}, "max_buffers is '8'"),
        ({"float16": 1}, "float16 is 1"),
        ({"dialect": "glsl"}, "dialect is 'glsl'"),
        ({"matrices": [["f16", "f32", 16, 16]]}, "no configuration of matrices"),
        ({"matrices": [5]}, "no configuration of matrices"),
        ({"matrices": "none"}, "matrices is 'none'"),
        ({"name": None}, "name is None"),
    ],
)
def test_what_is_no_target_is_refused(change: dict[str, object], complaint: str) -> None:
    data = json.loads(named("browser").to_json()) | change
    with pytest.raises(WebGPUError, match=complaint):
        Target.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "7", '{"int64": true}'])
def test_nor_is_other_json(text: str) -> None:
    with pytest.raises(WebGPUError, match="not a target"):
        Target.from_json(text)


def test_an_unknown_name_is_told_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"no target 'browsers' .did you mean 'browser'"):
        named("browsers")


def test_matrices_are_kept() -> None:
    config = MatrixConfig("f16", "f32", 16, 16, 16, 32)
    target = replace(named("browser"), matrices=(config,))
    assert Target.from_json(target.to_json()).matrices == (config,)
