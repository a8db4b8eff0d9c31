"""``torch.cuda.cudart()`` and what is near the CUDA runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import memory
from .target import HERE

SUCCESS = 0


class Cudart:
    """What programs call of the CUDA runtime's module. Everything else is an AttributeError that says so."""

    class cudaError:  # noqa: N801 CUDA's name
        """Its numbers."""

        success = SUCCESS

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:  # noqa: N802
        """(free, total) bytes."""
        return memory.mem_get_info(device)

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        """What a number means."""
        return "no error" if code == SUCCESS else f"CUDA error {code}"

    def cudaProfilerStart(self) -> int:  # noqa: N802
        """No profiler of NVIDIA's watches."""
        return SUCCESS

    def cudaProfilerStop(self) -> int:  # noqa: N802
        """No profiler of NVIDIA's watches."""
        return SUCCESS

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{HERE.type} has no CUDA runtime to call {name!r} of: torch.{HERE.type} has what the device can do"
        )


def cudart() -> Cudart:
    """An object in the place of the CUDA runtime."""
    return Cudart()


def check_error(res: int) -> None:
    """RuntimeError for a number that means one."""
    if int(res) != SUCCESS:
        raise RuntimeError(Cudart().cudaGetErrorString(int(res)))


@contextmanager
def flags(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Changes nothing."""
    yield


class CufftPlanCache:
    """``torch.backends.cuda.cufft_plan_cache``: plans of Fourier transforms are kept like every other kernel."""

    size = 0
    max_size = 0

    def clear(self) -> None:
        """Nothing is kept."""

    def __getitem__(self, device: Any) -> CufftPlanCache:
        HERE.index(device)
        return self


cufft_plan_cache = CufftPlanCache()


def zero(*args: Any) -> int:
    """0."""
    return 0


def no(*args: Any) -> bool:
    """False."""
    return False


def no_text() -> str:
    """Nothing."""
    return ""


def none_of(*args: Any) -> tuple[Any, ...]:
    """Nothing."""
    return ()
