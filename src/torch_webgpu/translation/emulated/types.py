"""``torch.cuda.FloatTensor`` and its kind: classes that make tensors of one dtype on the target, and know them.

PyTorch's own cannot be used where it was built without CUDA. So these are classes of ours, whose instances are plain
tensors; ``torch.webgpu.FloatTensor`` would be the name of their type.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_webgpu.translation.device_names import FOREIGN

from .target import HERE

DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
}  # fmt: skip
"""PyTorch's names of its types, and their dtypes."""


class TensorType(type):
    """The class of ``torch.cuda.FloatTensor``, under the name of PyTorch's: Dynamo puts such a class into a graph."""

    __module__, __qualname__ = "torch", "tensortype"

    dtype: torch.dtype
    sparse: bool
    is_cuda = True

    def __new__(cls, name: str, module: str, dtype: torch.dtype, sparse: bool = False) -> TensorType:
        made = super().__new__(cls, name, (), {"__module__": module, "__doc__": f"Tensors of {dtype} on the device."})
        made.dtype, made.sparse = dtype, sparse
        return made

    def __init__(cls, *args: Any) -> None:
        pass

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == HERE.type
            and value.dtype == cls.dtype
            and value.is_sparse == cls.sparse
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A tensor of this type: of a shape, with the values of a sequence, or a tensor of the type itself."""
        if cls.sparse:
            return torch.sparse_coo_tensor(*args, dtype=cls.dtype, device=HERE.type, **kwargs)
        if not args:
            return torch.empty(0, dtype=cls.dtype, device=HERE.type)
        first = args[0]
        if isinstance(first, (int, torch.Size)):
            return torch.empty(*args, dtype=cls.dtype, device=HERE.type)
        if isinstance(first, torch.Tensor):
            return first.to(HERE.type, cls.dtype)
        if isinstance(first, (torch.UntypedStorage, torch.TypedStorage)):
            return torch.empty(0, dtype=cls.dtype, device=HERE.type).set_(first)
        return torch.tensor(first, dtype=cls.dtype, device=HERE.type)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


class StorageType(type):
    """The class of ``torch.cuda.FloatStorage``."""

    dtype: torch.dtype

    def __new__(cls, name: str, module: str, dtype: torch.dtype) -> StorageType:
        made = super().__new__(cls, name, (), {"__module__": module, "__doc__": f"Storages of {dtype} on the device."})
        made.dtype = dtype
        return made

    def __init__(cls, *args: Any) -> None:
        pass

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.TypedStorage) and value.device.type == HERE.type and value.dtype == cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.TypedStorage:
        """A storage of ``n`` elements, or with the values of a sequence."""
        if args and not isinstance(args[0], int):
            tensor = torch.tensor(list(args[0]), dtype=cls.dtype, device=HERE.type)
        else:
            tensor = torch.empty(args[0] if args else 0, dtype=cls.dtype, device=HERE.type)
        return torch.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=cls.dtype, _internal=True)


def _made(module: str, sparse: bool) -> dict[str, Any]:
    return {f"{name}Tensor": TensorType(f"{name}Tensor", module, dtype, sparse) for name, dtype in DTYPES.items()}


CLASSES: dict[str, Any] = {
    **{f"torch.cuda.{name}": made for name, made in _made("torch.cuda", sparse=False).items()},
    **{f"torch.cuda.sparse.{name}": made for name, made in _made("torch.cuda.sparse", sparse=True).items()},
    **{
        f"torch.cuda.{name}Storage": StorageType(f"{name}Storage", "torch.cuda", dtype)
        for name, dtype in DTYPES.items()
    },
}
"""Each of them by its full name."""


def __getattr__(name: str) -> Any:
    """``FloatTensor``, ``FloatStorage`` and, for ``torch.cuda.sparse``, ``sparse_FloatTensor``."""
    module = "torch.cuda.sparse." if name.startswith("sparse_") else "torch.cuda."
    try:
        return CLASSES[module + name.removeprefix("sparse_")]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def asked_type(dtype: Any) -> TensorType | None:
    """The class that a type argument names: "torch.cuda.HalfTensor", its local name, or the class itself. None for
    PyTorch's own."""
    if isinstance(dtype, TensorType):
        return dtype
    if not isinstance(dtype, str):
        return None
    words = dtype.split(".")
    if words[0] != "torch" or len(words) < 3 or words[1] not in (*FOREIGN, HERE.type):
        return None
    found: TensorType | None = CLASSES.get(".".join(["torch", "cuda", *words[2:]]))
    return found
