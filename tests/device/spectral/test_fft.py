"""Fourier transforms on the device, against the CPU's and against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.device.against_cpu import check, layouts, results_on

from torch_webgpu.plan import trace
from torch_webgpu.target import named

SHORT = (*range(1, 20), 32, 60, 64, 77, 127, 128, 169, 210, 243, 343)
FEW = (1, 2, 3, 7, 8, 17, 60, 128)
LONG = (509, 1021, 1024, 2187, 4097, 5000, 8192)
FUNCTIONS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
NORMS = ("backward", "ortho", "forward")
DTYPES = (torch.complex64, torch.complex128)


@pytest.fixture(autouse=True)
def natively():
    """No test may have run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    now = torch.webgpu.fallback_stats()
    assert {k: n for k, n in now.items() if "fft" in k} == {k: n for k, n in before.items() if "fft" in k}


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, root mean square."""
    return ((result.cpu().to(exact.dtype) - exact).abs().pow(2).mean().sqrt() / exact.abs().pow(2).mean().sqrt()).item()


def operand(name: str, *shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    """A signal that a function of ``torch.fft`` takes."""
    real = name in ("rfft", "ihfft", "rfftn", "rfft2", "ihfftn")
    return torch.randn(shape, dtype=dtype.to_real() if real else dtype)


def accurate(device: torch.device, fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Asserts that an error against float64 is a few roundings, which grow with the logarithm of the length."""
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    result = fn(x.to(device))
    bound = 5e-7 if x.dtype in (torch.complex64, torch.float32) else 1e-14
    assert error(result, fn(wide)) < bound
    assert result.dtype == fn(x).dtype


def test_every_short_length(device):
    for n in SHORT:
        accurate(device, torch.fft.fft, operand("fft", 3, n))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_function(device, name, dtype):
    fn = getattr(torch.fft, name)
    for n in FEW:
        accurate(device, lambda x, n=n: fn(x, n), operand(name, 3, n, dtype=dtype))


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_long_lengths(device, name):
    fn = getattr(torch.fft, name)
    for n in LONG:
        accurate(device, lambda x, n=n: fn(x, n), operand(name, 2, n))


def test_passes_through_memory(device):
    accurate(device, torch.fft.fft, operand("fft", 65_537))
    accurate(device, torch.fft.rfft, operand("rfft", 3**10))
    accurate(device, lambda x: torch.fft.irfft(x, 2**17), operand("irfft", 2**16 + 1))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_long_lengths_in_float64(device, dtype):
    for n in (1021, 4096):
        accurate(device, torch.fft.fft, operand("fft", 2, n, dtype=dtype))
    accurate(device, torch.fft.rfft, operand("rfft", 2, 5000, dtype=dtype))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_dimensions_and_normalizations(device, name, norm):
    fn = getattr(torch.fft, name)
    x = operand(name, 4, 6, 17)
    for dim in ((0,), (1,), (2,), (0, 1), (2, 0), (0, 1, 2), (1, 2, 0)):
        accurate(device, lambda x, d=dim: fn(x, dim=d, norm=norm), x)
    accurate(device, lambda x: fn(x, s=(9, 9), dim=(2, 0), norm=norm), x)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_layouts(device, dim):
    for make in (lambda *s: torch.randn(s), lambda *s: torch.randn(s, dtype=torch.complex64)):
        for x in layouts(make, 9, 20, 7).values():
            check(device, lambda x: torch.fft.fft(x, dim=dim), x)
            check(device, lambda x: torch.fft.fftn(x), x)
            assert torch.fft.fftn(x.to(device)).stride() == torch.fft.fftn(x).stride()
            if not x.is_complex():
                check(device, lambda x: torch.fft.rfft(x, dim=dim), x)


@pytest.mark.parametrize("shape", [(4096, 3, 5), (3, 4099, 5), (5, 7, 6000)], ids=str)
def test_long_lines_in_any_dimension(device, shape):
    dim = shape.index(max(shape))
    x = torch.randn(shape, dtype=torch.complex64)
    for view in (
        x,
        x.transpose(0, 2).contiguous().transpose(0, 2),
        x[::2],
        x.movedim(1, -1).contiguous().movedim(-1, 1),
    ):
        accurate(device, lambda x: torch.fft.fft(x, dim=dim), view)
        accurate(device, lambda x: torch.fft.irfft(x, dim=dim), view)


def test_more_lines_than_a_row_of_workgroups(device):
    accurate(device, torch.fft.fft, torch.randn(300_000, 5, dtype=torch.complex64))


def test_flags_of_conjugates_and_negatives(device):
    x = torch.randn(6, 20, dtype=torch.complex64)
    for fn in (torch.fft.fft, torch.fft.irfft, torch.fft.hfft):
        check(device, lambda x, fn=fn: fn(x.conj()), x)
    check(device, lambda x: torch.fft.rfft(x.conj().imag), x)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 17, 34, 5000])
def test_imaginary_parts_that_no_signal_has_are_ignored(device, n):
    x = torch.randn(3, n // 2 + 1, dtype=torch.complex64)
    clean = x.clone()
    clean.imag[:, 0] = 0
    if n % 2 == 0:
        clean.imag[:, -1] = 0
    result = torch.fft.irfft(x.to(device), n).cpu()
    torch.testing.assert_close(result, torch.fft.irfft(clean, n))
    torch.testing.assert_close(result, torch.fft.irfft(x, n))


def test_sizes_of_one(device):
    for shape in ((1, 1, 1), (1, 8, 1)):
        x = torch.randn(shape, dtype=torch.complex64)
        check(device, torch.fft.fft, x)
        check(device, lambda x: torch.fft.irfft(x, 8), x)
        check(device, torch.fft.rfft, x.real.clone())


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)], ids=str)
def test_empty_batches(device, shape):
    """As CUDA's: MKL refuses its "configuration parameters"."""
    x = torch.empty(shape, dtype=torch.complex64, device=device)
    assert torch.fft.fft(x).shape == shape
    assert torch.fft.irfft(x, 8).shape == shape
    assert torch.fft.rfft(x.real).shape == (*shape[:-1], 5)


def test_no_dimensions(device):
    check(device, lambda x: torch.fft.fftn(x, dim=()), torch.randn(3, 4, dtype=torch.complex64))


def test_errors_are_the_cpus(device):
    for dtype, fn in (
        (torch.float16, torch.fft.fft),
        (torch.bfloat16, torch.fft.rfft),
        (torch.complex64, torch.fft.rfft),
        (torch.float32, lambda x: torch.fft.fft(x, 0)),
        (torch.float32, lambda x: torch.fft.fft(x, dim=3)),
        (torch.float32, lambda x: torch.fft.fftn(x, dim=(0, 0))),
    ):
        x = torch.ones(2, 4).to(dtype)
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as expected:
            fn(x)
        with pytest.raises(type(expected.value)) as raised:
            fn(x.to(device))
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_a_spectrum_that_is_too_short(device):
    with pytest.raises(RuntimeError, match="dimension 1 has 3 elements, and a signal of 8 has 5"):
        torch.ops.aten._fft_c2r(torch.ones(2, 3, dtype=torch.complex64, device=device), [1], 0, 8)


def test_out(device):
    x = torch.randn(5, 12, dtype=torch.complex64)
    out = torch.empty(0, dtype=torch.complex64, device=device)
    assert torch.fft.fft(x.to(device), out=out) is out
    torch.testing.assert_close(out.cpu(), torch.fft.fft(x))
    strided = torch.empty(14, 5, device=device).t()[:, :12]
    torch.fft.irfft(x[:, :7].to(device), out=strided)
    torch.testing.assert_close(strided.cpu(), torch.fft.irfft(x[:, :7]))
    torch.fft.rfft(x.real.to(device), out=out)
    torch.testing.assert_close(out.cpu(), torch.fft.rfft(x.real))


@pytest.mark.float64
@pytest.mark.parametrize("name", ["fft", "irfft", "hfft", "ifft2", "irfftn"])
def test_gradients(device, name):
    fn = getattr(torch.fft, name)
    x = torch.randn(2, 5, dtype=torch.complex128).to(device).requires_grad_()
    assert torch.autograd.gradcheck(fn, [x], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fn, [x])


@pytest.mark.float64
@pytest.mark.parametrize("name", ["rfft", "ihfft", "rfft2", "fft", "stft"])
def test_gradients_of_real_signals(device, name):
    if name == "stft":
        window = torch.hann_window(8, dtype=torch.float64).to(device)
        fn = lambda x: torch.stft(x, 8, 3, window=window, return_complex=True)
    else:
        fn = getattr(torch.fft, name)
    x = torch.randn(2, 17, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(fn, [x], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fn, [x])


def test_short_time_transforms_and_back(device):
    x = torch.randn(2, 1000)

    def there_and_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.hann_window(64).to(x.device)
        spectrum = torch.stft(x, 64, 16, window=window, return_complex=True)
        return spectrum, torch.istft(spectrum, 64, 16, window=window, length=1000)

    check(device, there_and_back, x, backward=True)
    torch.testing.assert_close(results_on(device, there_and_back, [x], False)[1], x, rtol=1e-4, atol=1e-5)


def test_compiled(device):
    def filtered(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x * 2)
        return torch.fft.irfft(spectrum * (spectrum.abs() > 1), n=x.shape[-1]) + 1

    compiled = torch.compile(filtered, backend="webgpu", fullgraph=True)
    x = torch.randn(4, 60)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to(device)).cpu(), filtered(x))
    leaf = torch.randn(4, 60, device=device, requires_grad=True)
    compiled(leaf).square().sum().backward()
    reference = leaf.detach().cpu().requires_grad_()
    filtered(reference).square().sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), reference.grad)


@pytest.mark.parametrize(
    ("shape", "dim", "dispatches"),
    [
        ((5, 60), -1, 1),
        ((60, 5), 0, 1),
        ((3, 4096), -1, 2),
        ((1, 1 << 20), -1, 3),
        ((4, 17), -1, 3),
        ((1, 65_537), -1, 6),
    ],
    ids=str,
)
def test_dispatches(shape, dim, dispatches):
    """Of plans for browsers: one for each pass; three transforms where the length has a large prime factor."""
    x = torch.empty(shape, dtype=torch.complex64, device="meta")
    plan = trace(lambda x: torch.fft.fft(x, dim=dim), x, target=named("browser"))
    assert len(plan.steps) == dispatches
