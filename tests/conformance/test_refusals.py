"""The error inputs of PyTorch's operator database: the device refuses what the CPU refuses, in the same words."""

from __future__ import annotations

import pytest

from torch_webgpu.errors import UnsupportedDtypeError

from .checks import Call, summary
from .samples import Sample
from .target import CPU, DEVICE
from .trials import needs_float64, opinfos

_OF_VALUES = "it looks at values before it looks at the rest, or says less about them than the CPU"
_INDEX = "an index out of range is an IndexError, found when the device is waited for"
_OWN = "says the same in words of its own"

# First lines that differ, and why. A listed operator that says what the CPU says fails.
OTHER_WORDS: dict[str, str] = {
    "complex": _OWN,
    "masked_fill": _OWN,
    "narrow_copy": _OWN,
    "multinomial": _OF_VALUES,
    "gather": _INDEX,
    "scatter": _INDEX,
    "scatter_add": _INDEX,
}


def _refusing() -> list[object]:
    def marks(name: str) -> list[pytest.MarkDecorator]:
        why = OTHER_WORDS.get(name) if DEVICE.type == "webgpu" else None
        return [pytest.mark.xfail(reason=why, strict=True)] if why else []

    return [pytest.param(name, marks=marks(name)) for name, op in opinfos().items() if op.error_inputs_func is not None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _refusing())
def test_in_the_cpus_words(name: str) -> None:
    op, differing, doubles = opinfos()[name], [], False
    for number, given in enumerate(op.error_inputs("cpu")):
        s = given.sample_input
        sample = Sample(str(number), s.input, s.args, s.kwargs, s.output_process_fn_grad)
        if any(t.device.type != "cpu" for t in sample.tensors):
            continue  # about tensors of two devices, one of them "meta"
        expected = Call(op.op, sample, CPU).outcome().error
        try:
            found = Call(op.op, sample, DEVICE).outcome().error
        except UnsupportedDtypeError as error:
            if not needs_float64(error):
                raise
            doubles = True
            continue  # about tensors of two dtypes, of which the adapter has no float64
        if expected is None:
            continue  # PyTorch's own entry is out of date
        same_words = summary(found).replace(str(DEVICE), "cpu") == summary(expected)
        if not (isinstance(found, type(expected)) and same_words):
            differing.append(f"{sample.describe()}: {summary(found)!r}, on CPU {summary(expected)!r}")
    assert not differing, "\n".join(differing)
    if doubles and name in OTHER_WORDS:
        pytest.skip("what differs asks for float64, which the adapter has not")
