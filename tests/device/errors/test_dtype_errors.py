"""Dtypes that the device, an operator or the adapter has not: what is refused, and what runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.device.processes import assert_ends_well


def test_a_dtype_the_device_cannot_hold_says_what_to_do(device):
    for use in (
        lambda: torch.empty(3, dtype=torch.float4_e2m1fn_x2, device=device),
        lambda: torch.empty(3, dtype=torch.float4_e2m1fn_x2).to(device),
    ):
        with pytest.raises(TypeError, match=r"cannot hold torch.float4_e2m1fn_x2.*convert"):
            use()


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("dtype", [torch.complex128, torch.uint64], ids=str)
@pytest.mark.parametrize(
    "use",
    [
        lambda x, index: x[index],
        lambda x, index: x.index_put_((index,), x[:2].clone()),
        lambda x, index: x.index_put_((index,), x[:2].clone(), accumulate=True),
        lambda x, index: x.index_add_(0, index, x[:2].clone()),
        lambda x, index: x.index_fill_(0, index, 1),
        lambda x, index: x.index_copy_(0, index, x[:2].clone()),
        lambda x, index: x.scatter_(0, index[:, None], 1),
        lambda x, index: x.scatter_add_(0, index[:, None], x.clone()),
        lambda x, index: x.sort().values,
        lambda x, index: x.cumsum(0),
        lambda x, index: x.sum(),
    ],
)
def test_a_dtype_without_kernels_gives_what_the_cpu_gives(use, dtype, device):
    x, index = torch.arange(6).view(3, 2).to(dtype), torch.tensor([0, 2])
    try:
        expected = use(x.clone(), index)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            use(x.to(device), index.to(device))
    else:
        assert torch.equal(use(x.to(device), index.to(device)).cpu(), expected)


REFUSED: dict[str, tuple[tuple[torch.dtype, ...], Callable[[torch.Tensor], object]]] = {
    "conv2d": ((torch.bool,), lambda x: F.conv2d(x, x)),
    "avg_pool2d": ((torch.bool, torch.complex64), lambda x: F.avg_pool2d(x, 2)),
    "adaptive_avg_pool2d": ((torch.bool, torch.complex64), lambda x: F.adaptive_avg_pool2d(x, 2)),
    "max_pool2d": ((torch.bool, torch.complex64), lambda x: F.max_pool2d(x, 2)),
    "nll_loss": ((torch.int64, torch.complex64), lambda x: F.nll_loss(x[0, 0], x[0, 0, 0].real.long() * 0)),
    "softmax": ((torch.int64, torch.complex64), lambda x: x.softmax(0)),
    "log_softmax": ((torch.int64, torch.complex64), lambda x: x.log_softmax(-1)),
    "logaddexp": ((torch.int64, torch.bool), lambda x: torch.logaddexp(x, x)),
    "grid_sample": ((torch.int64,), lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1)[..., :2], align_corners=False)),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("name", REFUSED)
def test_dtypes_that_an_operator_has_no_kernel_for(device, name):
    """PyTorch's exception when it is called, not an error of a table or a shader when it runs."""
    dtypes, use = REFUSED[name]
    for dtype in dtypes:
        x = torch.ones(2, 3, 6, 6).to(dtype)
        for where in (x, x.to(device)):
            with pytest.raises(NotImplementedError, match="not implemented for"):
                use(where)


def test_float64_without_shader_f64_says_what_to_do():
    script = """
        x = torch.ones(3, device="webgpu")
        for use in (
            lambda: torch.zeros(3, dtype=torch.float64, device="webgpu"),
            lambda: x.double(),
            lambda: torch.ones(3, dtype=torch.float64).to("webgpu"),
            lambda: torch.nn.Linear(3, 3).double().to("webgpu"),
            lambda: torch.ones(3, dtype=torch.complex128, device="webgpu"),
        ):
            with pytest.raises(TypeError, match="no 64-bit floats.*float32|no 64-bit floats.*complex64"):
                use()
        assert (x + torch.tensor(1.0, dtype=torch.float64)).tolist() == [2, 2, 2]  # a number, not a tensor
        assert x.cpu().double().sum() == 3 and "f64" not in str(x.dtype)
    """
    assert_ends_well(script, TORCH_WEBGPU_FLOAT64="off")
