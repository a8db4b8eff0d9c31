"""What runs on the CPU is said once, of the function that the program calls, at its line, and summed up at the end."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.linalg as linear_algebra
import torch.nn.functional as F
from tests.device.processes import run_script
from torch.linalg import eigvals as eigenvalues

from torch_webgpu.aten.dispatch import fallback
from torch_webgpu.aten.dispatch.call_site import public_name
from torch_webgpu.errors import FallbackError

MATRIX = torch.tensor([[2.0, 1.0], [1.0, 3.0]])


@pytest.fixture(autouse=True)
def nothing_ran_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_counts", Counter())
    monkeypatch.setattr(fallback, "_functions", {})


def said(call: Callable[..., Any], *tensors: torch.Tensor) -> list[str]:
    """The functions that a call warns of, at lines of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*[t.to("webgpu") for t in tensors])
    ours = [w for w in caught if " runs on the CPU: " in str(w.message)]
    assert {w.filename for w in ours} <= {__file__}
    assert all(w.lineno >= call.__code__.co_firstlineno for w in ours)
    return [str(w.message).partition(" runs on the CPU: ")[0] for w in ours]


def through_backward(x: torch.Tensor) -> None:
    x = x.double().expand(1, 1, 2, 2).requires_grad_()
    F.interpolate(x, (4, 4), mode="bilinear").sum().backward()


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "torch.linalg.eig": lambda x: linear_algebra.eig(x.to(torch.complex128)),
    "torch.linalg.ldl_factor": lambda x: torch.linalg.ldl_factor(
        x.to(torch.complex128),
    ),
    "torch.linalg.eigvals": lambda x: eigenvalues(x.to(torch.complex128)),
    "torch.Tensor.geqrf": lambda x: x.t().to(torch.complex128).geqrf(),
    "torch.geqrf": lambda x: list(map(torch.geqrf, [x.to(torch.complex128)])),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_function_that_was_called_is_named(name: str) -> None:
    assert said(CALLS[name], MATRIX)[:1] == [name]
    assert said(CALLS[name], MATRIX) == []  # once


@pytest.mark.float64
def test_functions_that_are_decomposed_or_called_by_modules() -> None:
    upsample = torch.nn.Upsample(scale_factor=2, mode="linear")
    assert said(lambda x: upsample(x.double()[None]), MATRIX) == ["torch.nn.functional.interpolate"]
    assert said(lambda x: x.double().i0(), MATRIX) == ["torch.Tensor.i0"]
    assert said(lambda x: torch.compile(lambda y: torch.special.i1(y.double()))(x), MATRIX) == ["torch.special.i1"]


@pytest.mark.float64
def test_gradients() -> None:
    assert said(through_backward, MATRIX) == [
        "torch.nn.functional.interpolate",
        "the gradient of upsample_bilinear2d",
    ]


def test_what_a_function_calls_is_its_own_affair() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.linalg.ldl_factor(MATRIX.to("webgpu", torch.complex128))
        torch.linalg.ldl_factor_ex(MATRIX.to("webgpu", torch.complex128))
    assert len(caught) == 1
    assert "aten" not in str(caught[0].message)


def test_operators_names() -> None:
    assert public_name("aten._linalg_svd.U") == "torch.linalg.svd"
    assert public_name("aten._ctc_loss_backward.default") == "the gradient of torch.ctc_loss"
    assert public_name("aten.add_.Tensor") == "torch.add"
    assert public_name("aten::copy_") == "torch.Tensor.copy_"
    assert public_name("aten._cdist_forward.default") == "torch.cdist"
    assert public_name("mylib.twice.default") == "mylib.twice"
    assert public_name("aten._convert_weight_to_int4pack.default") == "torch._convert_weight_to_int4pack"


PROGRAM = """
    x = torch.eye(3, dtype=torch.complex128, device="webgpu")
    for _ in range(3):
        torch.linalg.ldl_factor(x), torch.linalg.ldl_factor_ex(x)
        torch.linalg.eigvals(x)
"""


def test_one_summary_at_the_end() -> None:
    done = run_script(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning") == 2
    summary = done.stderr.splitlines()[-1]
    assert (
        summary
        == "webgpu: ran on the CPU for want of a kernel: torch.linalg.ldl_factor_ex (6), torch.linalg.eigvals (3)"
    )


@pytest.mark.parametrize(
    ("program", "mode"), [(PROGRAM, "silent"), ("torch.ones(3, device='webgpu').sum().item()", "warn")]
)
def test_no_summary(program: str, mode: str) -> None:
    done = run_script(program, TORCH_WEBGPU_FALLBACK=mode)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_line_is_the_programs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\nx = torch.eye(3, dtype=torch.complex128, device='webgpu')\n\ntorch.linalg.ldl_factor(x)\n"
    )
    done = run_script(f"import runpy; runpy.run_path({str(script)!r})")
    assert (
        f"{script}:4: UserWarning: torch.linalg.ldl_factor runs on the CPU: no kernel computes with a dtype"
        in done.stderr
    )
    assert "\n  torch.linalg.ldl_factor(x)\n" in done.stderr


def test_what_is_forbidden_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    forbids = replace(fallback.config(), fallback="error")
    monkeypatch.setattr(fallback, "config", lambda: forbids)
    with pytest.raises(
        FallbackError, match=r"torch\.linalg\.ldl_factor would run on the CPU \(aten\.linalg_ldl_factor_ex\.default: "
    ):
        torch.linalg.ldl_factor(MATRIX.to("webgpu", torch.complex128))
    assert not fallback.fallback_stats()


def test_what_nobody_has_a_kernel_of() -> None:
    weight = torch.zeros(16, 32, dtype=torch.uint8, device="webgpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotImplementedError) as raised:
            torch._cslt_compress(weight)
    assert str(raised.value) == (
        "torch._cslt_compress: neither webgpu nor the CPU has a kernel of "
        "aten._cslt_compress.default for tensors like its arguments (torch.uint8, torch.strided)"
    )
    assert not fallback.fallback_stats()


def test_no_tensor_is_converted_by_a_quantized_dtype(device: torch.device) -> None:
    def message(x: torch.Tensor, *to: Any) -> str:
        with pytest.raises(RuntimeError) as raised:
            x.to(*to)
        return str(raised.value)

    expected = message(MATRIX, torch.quint8)
    assert message(MATRIX.to(device), torch.quint8) == expected
    assert message(MATRIX, device, torch.qint8) == expected
