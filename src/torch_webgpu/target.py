"""Targets: what the compiler may use of a GPU, as a value that needs no GPU.

A target is what an adapter offers (``runtime/adapter_target.py``), or a description kept as data in ``targets/``: plans
are compiled for a browser, for another system's GPU, or in a test, wherever the compiler runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

from torch_webgpu.errors import WebGPUError, did_you_mean

WINDOW_ALIGNMENT_BYTES = 256
Dialect = Literal["naga", "tint"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


class MatrixConfig(NamedTuple):
    """A product of matrix fragments that a subgroup computes at once ("tensor cores").

    An ``m`` × ``k`` fragment of ``operand`` numbers times a ``k`` × ``n`` one, added to one of ``result`` numbers. Both
    are f16, f32, i8, u8, i32 or u32. A subgroup of ``subgroup_size`` threads does it together.
    """

    operand: str
    result: str
    m: int
    n: int
    k: int
    subgroup_size: int

    @staticmethod
    def from_data(data: object) -> MatrixConfig:
        """The configuration that a list of its values is. ValueError for anything else."""
        if not isinstance(data, list) or tuple(map(type, data)) != (str, str, int, int, int, int):
            raise ValueError(f"{data!r} is no configuration of matrices")
        return MatrixConfig(*data)


@dataclass(frozen=True)
class Target:
    """The features and limits of a GPU, and whose compiler reads the shaders.

    ``int64``, ``float16``, ``float64``: types of WGSL that it has. ``immediates_bytes``: of parameters that travel with
    a dispatch; 0 where they need a uniform buffer. ``max_binding_bytes``: what one binding covers at most;
    ``max_buffers``: storage buffers that one dispatch may bind. ``software``: the adapter is a CPU, which wants other
    tile sizes. ``matrices``: what its tensor cores multiply. ``subgroup_sizes``: a kernel may ask for one;
    ``subgroup_size``: one that kernels may ask for, or that all subgroups have; 0 where that is not known.
    ``workgroup_bytes``, ``workgroup_threads``: memory and invocations of a workgroup. ``max_buffer_bytes``: the
    largest buffer. ``checks_bounds``: whether it keeps the indices of every shader in range by itself, as browsers
    do. ``rounds_f16``: whether its conversions to float16 round to the nearest, ties to even, and keep numbers
    below the normal ones, which WGSL leaves open. ``name`` is for people, and takes no part in comparisons.
    """

    int64: bool
    float16: bool
    float64: bool
    immediates_bytes: int
    max_binding_bytes: int
    max_buffers: int = 8
    dialect: Dialect = "naga"
    float32_atomics: bool = False
    subgroups: bool = False
    software: bool = False
    matrices: tuple[MatrixConfig, ...] = ()
    subgroup_sizes: bool = False
    subgroup_size: int = 0
    workgroup_bytes: int = 16384
    workgroup_threads: int = 256
    max_buffer_bytes: int = 1 << 28
    checks_bounds: bool = False
    rounds_f16: bool = False
    name: str = field(default="", compare=False)

    @property
    def window_bytes(self) -> int:
        """Bytes of a buffer that one binding covers when the buffer is bound in windows."""
        return self.max_binding_bytes // WINDOW_ALIGNMENT_BYTES * WINDOW_ALIGNMENT_BYTES

    def within(self, other: Target) -> Target:
        """What of this target ``other`` has, too, read by this one's compiler. Its name says both."""
        values: dict[str, Any] = {}
        for f in fields(self):
            own, limit = getattr(self, f.name), getattr(other, f.name)
            if f.name in ("software", "dialect", "checks_bounds", "rounds_f16"):
                values[f.name] = own
            elif f.name == "matrices":
                values[f.name] = tuple([matrix for matrix in own if matrix in limit])
            elif f.name == "subgroup_size":
                values[f.name] = own if own == limit else 0
            elif f.name == "name":
                values[f.name] = f"{own}, as {limit}"
            else:
                values[f.name] = min(own, limit)
        return Target(**values)

    def to_json(self, indent: int | None = None) -> str:
        """The target as JSON; equal targets of one name give equal text."""
        return json.dumps({**asdict(self), "matrices": [list(m) for m in self.matrices]}, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Target:
        """The target that :meth:`to_json` wrote. Raises WebGPUError for anything else, naming the key."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise WebGPUError(f"not a target: {error}") from None
        if not isinstance(data, dict):
            raise WebGPUError(f"not a target: a JSON object was expected, not {type(data).__name__}")
        return cls(**_checked(data))


def _checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a target, each of its type."""
    known = {f.name: f for f in fields(Target)}
    for key in data:
        if key not in known:
            raise WebGPUError(f"not a target: it has no {key!r}{did_you_mean(key, known)}")
    if missing := [name for name, f in known.items() if f.default is MISSING and name not in data]:
        raise WebGPUError(f"not a target: {', '.join(missing)} is missing")
    values: dict[str, Any] = {}
    for key, value in data.items():
        kind = str(known[key].type)
        if key == "matrices":
            values[key] = tuple([_matrix(entry) for entry in value]) if isinstance(value, list) else None
        elif kind == "bool":
            values[key] = value if isinstance(value, bool) else None
        elif kind == "int":
            values[key] = value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
        elif key == "dialect":
            values[key] = value if value in DIALECTS else None
        else:
            values[key] = value if isinstance(value, str) else None
        if values[key] is None:
            raise WebGPUError(f"not a target: {key} is {value!r}, which is not one of its values")
    return values


def _matrix(entry: object) -> MatrixConfig:
    try:
        return MatrixConfig.from_data(entry)
    except ValueError as error:
        raise WebGPUError(f"not a target: {error}") from None


def names() -> tuple[str, ...]:
    """The targets that are described here, in alphabetical order."""
    folder = files("torch_webgpu") / "targets"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


@cache
def named(name: str) -> Target:
    """The target of that name, of :func:`names`. ValueError for another one."""
    if name not in names():
        raise ValueError(f"there is no target {name!r}{did_you_mean(name, names())}: {', '.join(names())}")
    return Target.from_json((files("torch_webgpu") / "targets" / f"{name}.json").read_text("utf-8"))
