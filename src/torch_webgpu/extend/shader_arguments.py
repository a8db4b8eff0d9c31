"""The arguments of a call, checked before the GPU sees them, and brought into a form that its kernel can use.

What a kernel can use is decided by layouts and by the last four bits of where tensors start, as with every operator:
then a call like an earlier one need not be looked at again. Where more decides (see :func:`needs_start`), each call is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.store import address_of, offset_in_allocation
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_ADDRESS
from torch_webgpu.errors import UnsupportedDtypeError, did_you_mean
from torch_webgpu.ir.operation import Spec
from torch_webgpu.layout import extent
from torch_webgpu.wgsl.tokens import significant_tokens
from torch_webgpu.wgsl.types import SCALAR_BYTES, Names, constant, layout, scalars

from .shader_kernel import KINDS, element_bytes, header_bytes, scale_of
from .shader_source import EntryPoint, names_in
from .shader_uses import TensorUse, Uses, uses_of

Number = int | float
_WORDS = ("u32", "i32", "bool", "u8", "i8", "i16", "u16", "f16", "bf16", "i64")
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "f32": ("f32", "c64"), "i32": ("i32",), "u32": _WORDS, "f16": ("f16",), "f64": ("f64",), "i64": ("i64",),
    "u64": ("i64",),
}  # fmt: skip
"""The dtypes of tensors that arrays of a scalar type of WGSL can be, by names of ``dtypes.BY_NAME``."""
_STRUCTS = ("f32", "i32", "u32", "u8")
"""Those that arrays of structs with several types can be."""
GUARDED_BYTES = 16
"""Where tensors start modulo this is part of what a call is recognised by."""


@dataclass
class Prepared:
    """Tensors as the kernel gets them, and what has to be copied back afterwards: (from, into)."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    copies_back: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def needs_start(entry: EntryPoint) -> bool:
    """Whether where a tensor starts decides how it is passed, beyond its last four bits."""
    uses = uses_of(entry)
    return any(use.is_whole or GUARDED_BYTES % element_bytes(use, uses.names) for use in uses.tensors.values())


def signature(entry: EntryPoint) -> str:
    """The arguments of an entry point, for people: ``x: array<f32>, alpha: f32``."""
    return ", ".join([f"{r.name}: {r.type}" for r in entry.resources])


# Numbers


def number_kinds(entry: EntryPoint) -> dict[int, list[str]]:
    """For each number argument, by its place, the scalar types that it is made of. ShaderCompileError for one that no
    number can be."""
    uses = uses_of(entry)
    found = {}
    for k, resource in enumerate(entry.resources):
        if not resource.is_tensor:
            try:
                kinds = scalars(uses.types[k], uses.names)
            except ValueError as error:
                raise entry.source.error(resource.name, f"the type of {resource.name}: {error}") from None
            if wrong := [kind for kind in kinds if kind not in KINDS]:
                raise entry.source.error(
                    resource.name, f"{resource.name} has a {wrong[0]}: numbers are f32, f16, i32 or u32. Pass a tensor"
                )
            found[k] = kinds
    return found


def flattened(entry: EntryPoint, arguments: Sequence[Any], kinds: Mapping[int, list[str]]) -> list[Any]:
    """The arguments, of vectors, matrices and structs their numbers one by one."""
    check_count(entry, arguments)
    result: list[Any] = []
    for k, value in enumerate(arguments):
        if k in kinds and len(kinds[k]) > 1:
            numbers = list(_leaves(value))
            if len(numbers) != len(kinds[k]):
                resource = entry.resources[k]
                raise ValueError(
                    f"{entry.name}: argument {k} ({resource.name}) is a {resource.type}, which takes {len(kinds[k])} "
                    f"numbers, and {len(numbers)} were given"
                )
            result += numbers
        else:
            result.append(value)
    return result


def _leaves(value: Any) -> Iterator[Any]:
    """The numbers in nested sequences, and in mappings in their order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def check_count(entry: EntryPoint, arguments: Sequence[Any]) -> None:
    """TypeError unless there are as many arguments as the entry point has."""
    if len(arguments) != len(entry.resources):
        raise TypeError(
            f"{entry.name}() takes {len(entry.resources)} argument{'s' * (len(entry.resources) != 1)} "
            f"({signature(entry)}), and {len(arguments)} {'was' if len(arguments) == 1 else 'were'} given"
        )


def check_number(entry: EntryPoint, k: int, value: Any, kind: str) -> None:
    """TypeError, or ValueError, for what is no number of that type of WGSL."""
    resource = entry.resources[k]
    what = f"{entry.name}: argument {k} ({resource.name}: {resource.type})"
    if isinstance(value, torch.Tensor):
        raise TypeError(f"{what} is a number, and a tensor was given: pass its .item(), or declare a storage buffer")
    if kind in ("f32", "f16"):
        if not isinstance(value, Real):
            raise TypeError(f"{what} is a number, and {value!r} ({type(value).__name__}) was given")
        return
    if not isinstance(value, Integral):
        raise TypeError(f"{what} is an integer, and {value!r} ({type(value).__name__}) was given")
    check_range(entry, k, int(value), kind)


def check_range(entry: EntryPoint, k: int, value: int, kind: str) -> None:
    least, most = (0, 0xFFFFFFFF) if kind == "u32" else (-0x80000000, 0x7FFFFFFF)
    if not least <= value <= most:
        resource = entry.resources[k]
        raise ValueError(f"{entry.name}: argument {k} ({resource.name}: {resource.type}) cannot be {value}")


# Tensors


def check_layouts(entry: EntryPoint, arguments: Sequence[Any]) -> None:
    """TypeError for a tensor without a storage on the device, such as a sparse one."""
    for k, value in enumerate(arguments):
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout is not torch.strided:
            raise TypeError(
                f"{entry.name}: argument {k}: a tensor of layout {value.layout} was given, and only strided ones can "
                "be passed"
            )
        if value.device.type == "webgpu" and not _has_storage(value):
            raise TypeError(
                f"{entry.name}: argument {k}: a {type(value).__name__} without memory of its own was given, as those "
                "of torch.func and fake ones are. Make the call an operator (torch.library.custom_op)"
            )


def _has_storage(t: torch.Tensor) -> bool:
    try:
        return address_of(t) >= FIRST_ADDRESS
    except RuntimeError:
        return False


def prepared(entry: EntryPoint, tensors: Sequence[Any]) -> Prepared:
    """The tensors of a call, in the order of the arguments. Raises TypeError and ValueError with names and values.

    A tensor that is not laid out as its kernel sees it is copied, and copied back if it is written; one that is only
    read and shares memory with one that is written is copied, too: what is read does not change while a kernel runs.
    """
    uses = uses_of(entry)
    check_layouts(entry, tensors)
    checks = [_Check(entry, k, use, t, uses.names) for (k, use), t in zip(uses.tensors.items(), tensors, strict=True)]
    for check in checks:
        check.run()
    _check_devices(entry, checks)
    result = Prepared()
    for check in checks:
        t, is_written = check.tensor, check.use.resource.is_written
        if not (check.is_misplaced() or _must_be_apart(check, checks, uses)):
            result.tensors.append(t)
            continue
        copied = engine().copy_of(t.resolve_conj().resolve_neg())
        result.tensors.append(copied)
        if is_written:
            result.copies_back.append((copied, t))
    return result


@dataclass
class _Check:
    """One tensor argument."""

    entry: EntryPoint
    place: int
    use: TensorUse
    tensor: Any
    names: Names

    @property
    def what(self) -> str:
        return f"{self.entry.name}: argument {self.place} ({self.use.resource.name}: {self.use.resource.type})"

    @property
    def itemsize(self) -> int:
        return self.tensor.element_size()

    @property
    def interval(self) -> tuple[int, int]:
        """The addresses from its first element to behind its last one."""
        start = address_of(self.tensor)
        return start, start + extent(tuple(self.tensor.shape), self.tensor.stride()) * self.itemsize

    def run(self) -> None:
        t, use = self.tensor, self.use
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{self.what} is a tensor, and {t!r} ({type(t).__name__}) was given")
        if t.layout is not torch.strided:
            raise TypeError(
                f"{self.what}: a tensor of layout {t.layout} was given, and only strided ones can be passed"
            )
        if t.device.type != "webgpu":
            raise ValueError(
                f"{self.what}: a tensor on {t.device} was given, and kernels run on the webgpu device: pass it "
                ".to('webgpu')"
            )
        self._check_dtype()
        if use.dimensions > t.dim():
            name = next(n for n in sorted(use.names) if n.endswith(f"_{use.dimensions - 1}"))
            raise ValueError(
                f"{self.what}: the kernel asks for {use.resource.name}_{name}, and a tensor of shape {tuple(t.shape)} "
                f"was given, which has {t.dim()} dimensions"
            )
        if use.resource.is_written:
            if t.is_conj() or t.is_neg():
                raise ValueError(f"{self.what} is written, and is a lazily conjugated or negated view: clone it")
            if any(stride == 0 and size > 1 for size, stride in zip(t.shape, t.stride(), strict=True)):
                raise RuntimeError(
                    f"{self.what} is written: unsupported operation: more than one element of the written-to tensor "
                    "refers to a single memory location. Please clone() the tensor before performing the operation."
                )
        self._check_size()

    def _check_dtype(self) -> None:
        t, use = self.tensor, self.use
        try:
            dtype = dtypes.of(t.dtype)
        except UnsupportedDtypeError as error:
            raise UnsupportedDtypeError(f"{self.what}: {error}") from None
        kinds = set(scalars(use.element, self.names))
        accepted = _STRUCTS if len(kinds) > 1 else _ACCEPTED.get(next(iter(kinds)), ())
        if dtype.name not in accepted:
            wanted = ", ".join([str(dtypes.BY_NAME[name].torch) for name in accepted])
            packed = (
                f". Elements of {t.dtype} are packed, {dtype.per_word} in a word: declare array<u32>"
                if dtype.is_subword
                else ""
            )
            raise TypeError(
                f"{self.what}: a tensor of {t.dtype} was given, and {use.element} holds {wanted or 'none'}{packed}"
            )

    def _check_size(self) -> None:
        use, t = self.use, self.tensor
        held, most = engine().allocation(t).size_bytes, engine().device(t.get_device()).target.max_binding_bytes
        if held > most:
            raise ValueError(
                f"{self.what}: the tensor's storage has {held} bytes, and one binding of this adapter covers {most}: "
                "pass a tensor with a smaller storage of its own, such as a clone of a part"
            )
        size = (extent(tuple(t.shape), t.stride()) if use.reads_strides else t.numel()) * self.itemsize - header_bytes(
            use, self.names
        )
        element = element_bytes(use, self.names)
        if not use.is_array or use.member:
            least = layout(use.type, self.names).size
            if t.numel() and t.numel() * self.itemsize < least:
                raise ValueError(
                    f"{self.what} takes at least {least} bytes, and a tensor of shape {tuple(t.shape)} and {t.dtype} "
                    f"has {t.numel() * self.itemsize}"
                )
        elif use.length and t.numel() and size < constant(use.length, self.names) * element:
            raise ValueError(f"{self.what}: a tensor of shape {tuple(t.shape)} was given, which has too few elements")
        elif self._is_padded(element) and (not t.dim() or t.shape[-1] * self.itemsize % element):
            raise ValueError(
                f"{self.what}: WGSL puts a {use.element} every {element} bytes, with padding. Pass a tensor whose last "
                f"dimension is {element // self.itemsize}, not one of shape {tuple(t.shape)}, or declare an array of "
                "numbers"
            )
        elif size % element and not self.is_packed:
            raise ValueError(
                f"{self.what}: a tensor of shape {tuple(t.shape)} and {t.dtype} was given, whose {size} bytes are no "
                f"multiple of the {element} bytes of a {use.element}"
            )

    def _is_padded(self, element: int) -> bool:
        """Whether an element has bytes that are no value's."""
        return sum([SCALAR_BYTES[scalar] for scalar in scalars(self.use.element, self.names)]) < element

    @property
    def is_packed(self) -> bool:
        """Whether its elements are smaller than what the kernel reads and writes at once."""
        return dtypes.of(self.tensor.dtype).is_subword and scalars(self.use.element, self.names)[0] == "u32"

    def is_misplaced(self) -> bool:
        """Whether the kernel cannot find its elements as they lie."""
        t, use = self.tensor, self.use
        element = element_bytes(use, self.names)
        if t.is_conj() or t.is_neg():
            return True
        is_aligned = offset_in_allocation(t) == 0 if use.is_whole else offset_in_allocation(t) % element == 0
        if use.reads_strides:
            if not is_aligned or (self.is_packed and use.resource.is_written):
                raise ValueError(
                    f"{self.what}: the kernel reads {use.resource.name}'s strides, and elements of {t.dtype} that "
                    f"start {offset_in_allocation(t)} bytes into their storage cannot be found in an array of "
                    f"{use.element}: clone it"
                )
            return False
        # The last word of one that is written may be partly another tensor's.
        ends_within = use.resource.is_written and self.is_packed and t.numel() * self.itemsize % element != 0
        return not t.is_contiguous() or not is_aligned or ends_within


def _check_devices(entry: EntryPoint, checks: Sequence[_Check]) -> None:
    if len({check.tensor.device for check in checks}) > 1:
        one, other = list(dict.fromkeys([check.tensor.device for check in checks]))[:2]
        raise ValueError(f"{entry.name}: the tensors are on {one} and on {other}: all must be on one device")


def _must_be_apart(check: _Check, checks: Sequence[_Check], uses: Uses) -> bool:
    """Whether a tensor in its place would be seen to change, or cannot be bound beside another one of its storage."""
    place = checks.index(check)
    start, end = check.interval
    for number, other in enumerate(checks):
        written = other.use.resource.is_written
        if other is check or not (written or check.use.resource.is_written):
            continue
        first, last = other.interval
        if start >> ADDRESS_BITS != first >> ADDRESS_BITS:
            continue
        if start < last and first < end:
            if written and check.use.resource.is_written:
                raise ValueError(
                    f"{check.entry.name}: {check.use.resource.name} and {other.use.resource.name} share memory, and "
                    "both are written: pass a clone of one of them"
                )
            if not check.use.resource.is_written:
                return True
            continue
        # One binding serves both, if it is of one type; else the one that comes later is copied, or is only read.
        if _is_alike(check, other):
            continue
        if not check.use.resource.is_written or (written and number < place):
            return True
    return False


def _is_alike(one: _Check, other: _Check) -> bool:
    """Whether two tensors of a storage can be used through one variable."""
    texts = [
        (c.use.element, c.use.is_whole, scale_of(c.use, _spec(c.tensor), c.names), c.tensor.dtype) for c in (one, other)
    ]
    return texts[0] == texts[1] and not one.use.is_whole


def _spec(t: torch.Tensor) -> Spec:
    return Spec(dtypes.of(t.dtype).name, tuple(t.shape), t.stride())


# Constants and sizes


def constant_texts(entry: EntryPoint, constants: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """WGSL for the values of override constants, by their names. ValueError for an unknown or a missing one."""
    given = {str(name): value for name, value in (constants or {}).items()}
    by_key = {key: o for o in entry.overrides for key in (o.name, o.number) if key}
    all_overrides = {d.name for d in entry.source.module.declarations if d.kind == "override"}
    texts = {}
    for name, value in given.items():
        if name not in by_key:
            if name in all_overrides:
                continue  # of another kernel of the library
            raise ValueError(
                f"{entry.name}: there is no override constant {name!r}{did_you_mean(name, by_key)}: "
                f"{', '.join(o.name for o in entry.overrides) or 'it has none'}"
            )
        override = by_key[name]
        texts[override.name] = _literal(entry, override.name, override.type or _type_of(override.default), value)
    for override in entry.overrides:
        if not override.default and override.name not in texts:
            raise ValueError(
                f"{entry.name}: the override constant {override.name} has no default: pass "
                f"constants={{{override.name!r}: …}}"
            )
    return tuple(sorted(texts.items()))


def sized_constants(
    entry: EntryPoint, size: tuple[int, int, int], constants: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The constants of a call that asks for workgroups of this size: override constants that the text's own size is
    made of are of that size, too, wherever the text uses them. ValueError where it is made of other constants.
    """
    given = dict(constants or {})
    overrides = {override.name: override for override in entry.overrides}
    said = entry.source.module.by_name[entry.name].attributes.get("workgroup_size", "")
    for number, part in zip(size, [part.strip() for part in said.split(",")]):
        if part in overrides:
            key = next((k for k in (part, overrides[part].number) if k and k in map(str, given)), None)
            if key is not None and {str(k): v for k, v in given.items()}[key] != number:
                raise ValueError(
                    f"{entry.name}: group_size={size} and constants={given!r} say different things of {part}"
                )
            given[part] = number
        elif names := names_in(significant_tokens(part)):
            raise ValueError(
                f"{entry.name}: its workgroups have @workgroup_size({said}), and other parts of the text may rely on "
                f"{', '.join(sorted(names))}: make it an override constant, then group_size sets it, too"
            )
    return given


def _type_of(literal: str) -> str:
    """The type of an override constant that is known by its default alone."""
    if literal in ("true", "false"):
        return "bool"
    suffix = {"u": "u32", "i": "i32", "f": "f32", "h": "f16"}.get(literal[-1:])
    if suffix and literal[:2].lower() != "0x":
        return suffix
    return "f32" if any(mark in literal for mark in ".e") else "i32"


def _literal(entry: EntryPoint, name: str, type_: str, value: Any) -> str:
    what = f"{entry.name}: the override constant {name} is a {type_}"
    if type_ == "bool":
        return "true" if value else "false"
    if type_ in ("i32", "u32"):
        if not isinstance(value, Integral):
            raise TypeError(f"{what}, and {value!r} was given")
        least, most = (0, 0xFFFFFFFF) if type_ == "u32" else (-0x80000000, 0x7FFFFFFF)
        if not least <= int(value) <= most:
            raise ValueError(f"{what}, which cannot be {value}")
        return f"{type_}({int(value)})"
    if not isinstance(value, Real) or float(value) - float(value) != 0:
        raise TypeError(f"{what}, and {value!r} was given, which is no finite number")
    return f"{type_}({float(value)!r})"
