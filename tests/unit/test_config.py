"""The environment's flags: what cannot be read, or is not known, is an error of the device, and of nobody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.installed import needs_installation

from torch_webgpu import config
from torch_webgpu.errors import FlagError, did_you_mean

WRONG = {
    "TORCH_WEBGPU_FALLBACK": ("eror", "expected one of warn, silent, error (did you mean 'error'?)"),
    "TORCH_WEBGPU_DEBUG": ("fuse,wgls", "there is no stage wgls, only record,.*(did you mean 'wgsl'?)"),
    "TORCH_WEBGPU_IMPLEMENTATION": ("wpgu", "expected one of auto, wgpu, dawn (did you mean 'wgpu'?)"),
    "TORCH_WEBGPU_COPIES": ("two", "expected a whole number, 1 or more"),
    "TORCH_WEBGPU_FUSION_WINDOW": ("-1", "expected a whole number, 0 or more"),
    "TORCH_WEBGPU_MAX_BUFFERS": ("8.5", "expected a whole number, 0 or more"),
    "TORCH_WEBGPU_BATCHING": ("none", "expected 1 or 0"),
    "TORCH_WEBGPU_FLOAT64": ("on", "expected off, or nothing"),
    "TORCH_WEBGPU_INT64": ("emulate", "expected emulated, or nothing"),
    "TORCH_WEBGPU_FALBACK": ("warn", "there is no TORCH_WEBGPU_FALBACK (did you mean 'TORCH_WEBGPU_FALLBACK'?)"),
    "TORCH_WEBGPU_TRANSLATE_REPRT": ("-", " (did you mean 'TORCH_WEBGPU_TRANSLATE_REPORT'?)"),
}
PROGRAM = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("error")
    import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(2):
        with torch.random.fork_rng():
            assert not torch.accelerator.is_available()
    assert not torch.webgpu.is_available()
(warned,) = warned
said = [str(warned.message)]
for use in (lambda: torch.ones(2, device="webgpu"), lambda: model.to("webgpu"), lambda: torch.webgpu.synchronize()):
    try:
        use()
    except ValueError as error:
        said.append(str(error))
    else:
        raise AssertionError("that is no error?")
print(*said, sep="\\n")
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """None of this package's flags is set; the configuration is read again."""
    for name in [name for name in os.environ if name.startswith(config.PREFIX)]:
        monkeypatch.delenv(name)
    config.config.cache_clear()
    yield monkeypatch
    config.config.cache_clear()


@pytest.mark.parametrize("name", WRONG)
def test_a_flag_that_is_wrong_is_named_with_what_was_expected(environment: pytest.MonkeyPatch, name: str) -> None:
    value, says = WRONG[name]
    environment.setenv(name, value)
    assert config.config() == config.Config(problems=config.config().problems)
    with pytest.raises(FlagError, match=re.sub("[?()]", r"\\\g<0>", says)) as caught:
        config.check()
    assert name in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(environment: pytest.MonkeyPatch) -> None:
    for name, (value, _) in WRONG.items():
        environment.setenv(name, value)
    with pytest.raises(FlagError) as caught:
        config.check()
    assert all(name in str(caught.value) for name in WRONG)


def test_a_flag_that_cannot_be_read_counts_as_not_set(environment: pytest.MonkeyPatch) -> None:
    default = config.Config()
    for name, (value, _) in WRONG.items():
        environment.setenv(name, value)
    wrong = config.Config()
    assert wrong.problems
    assert wrong == config.Config(**(vars(default) | {"problems": wrong.problems}))


def test_right_ones_are_read(environment: pytest.MonkeyPatch) -> None:
    said = {"COPIES": "2", "DEBUG": " fuse, plan ", "BATCHING": "off", "FUSION": "1", "FLOAT64": "off", "ADAPTER": ""}
    said["INT64"] = "emulated"
    for name, value in said.items():
        environment.setenv(f"TORCH_WEBGPU_{name}", value)
    for name in ("TRANSLATE", "TRANSLATE_REPORT", "TEST_DEVICE", "CONFORMANCE"):
        environment.setenv(f"TORCH_WEBGPU_{name}", "0")
    config.check()
    flags = config.config()
    assert (flags.copies, flags.debug, flags.batching, flags.fusion) == (2, {"fuse", "plan"}, False, True)
    assert (flags.float64, flags.emulate_int64, flags.emulate_float16, flags.adapter) == (False, True, False, "")


def test_every_flag_is_in_the_table_of_the_module() -> None:
    documented = config.__doc__ or ""
    assert all(f"``{config.PREFIX}{name}``" in documented for name in config.FLAGS)


@needs_installation
@pytest.mark.parametrize("name", ["TORCH_WEBGPU_COPIES", "TORCH_WEBGPU_FALBACK"])
def test_import_torch_and_programs_for_the_cpu_do_not_mind(name: str) -> None:
    value, says = WRONG[name]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | {name: value}, capture_output=True, text=True, timeout=290
    )
    assert done.returncode == 0, done.stderr
    assert all(says in line for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 4


def test_the_nearest_name_is_offered_and_none_that_is_far() -> None:
    assert did_you_mean("webpgu", ("cpu", "webgpu")) == " (did you mean 'webgpu'?)"
    assert did_you_mean("FALBACK", ("fallback", "fusion")) == " (did you mean 'fallback'?)"
    assert did_you_mean("quux", ("cpu", "webgpu")) == ""
