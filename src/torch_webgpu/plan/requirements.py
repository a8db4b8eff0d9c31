"""What a plan needs of the GPU that runs it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.tokens import tokens

FEATURES = ("float16", "float64", "int64", "subgroups", "subgroup_sizes")
"""Of :class:`Target`, those that a kernel's text may take for granted."""
_LIMITS = ("max_buffers", "workgroup_bytes", "workgroup_threads", "max_buffer_bytes")


@dataclass(frozen=True)
class Requirements:
    """Features by name, and limits, as :class:`Target` has them; ``subgroup_size`` 0 where none is asked for."""

    features: tuple[str, ...] = ()
    matrices: tuple[MatrixConfig, ...] = ()
    subgroup_size: int = 0
    max_buffers: int = 0
    workgroup_bytes: int = 0
    workgroup_threads: int = 0
    max_buffer_bytes: int = 0

    def missing(self, target: Target) -> list[str]:
        """What a target lacks, a sentence each, with its own value."""
        features = set(self.features)
        if self.subgroup_size and self.subgroup_size == target.subgroup_size:
            features.discard("subgroup_sizes")  # none has to be asked for
        lacks = [f"{name}, which it does not have" for name in sorted(features) if not getattr(target, name)]
        lacks += [
            f"products of {m.m} × {m.k} and {m.k} × {m.n} fragments of {m.operand} with results in {m.result} by "
            f"{m.subgroup_size} threads, and it has {'other ones' if target.matrices else 'none'}"
            for m in self.matrices
            if m not in target.matrices
        ]
        if self.subgroup_size and self.subgroup_size != target.subgroup_size:
            lacks.append(
                f"subgroups of {self.subgroup_size} threads, and it has {target.subgroup_size or 'any number'}"
            )
        for name in _LIMITS:
            needed, limit = getattr(self, name), getattr(target, name)
            if needed > limit:
                lacks.append(f"{name} {needed}, and it has {limit}")
        return lacks

    def to_data(self) -> dict[str, object]:
        """What it says, as JSON writes it; what it does not ask for is left out."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name)}

    @classmethod
    def from_data(cls, data: object) -> Requirements:
        """What :meth:`to_data` wrote. ValueError for anything else."""
        if not isinstance(data, dict) or (unknown := data.keys() - {f.name for f in fields(cls)}):
            raise ValueError(f"requires: {data if not isinstance(data, dict) else ', '.join(sorted(unknown))}")
        features, matrices = data.get("features", []), data.get("matrices", [])
        if not isinstance(features, list) or not set(features) <= set(FEATURES):
            raise ValueError(f"requires: {features} are not features of a target")
        numbers = {name: value for name, value in data.items() if name not in ("features", "matrices")}
        if not all(type(value) is int and value >= 0 for value in numbers.values()):
            raise ValueError("requires: a limit is no number")
        return cls(tuple(features), tuple([MatrixConfig.from_data(entry) for entry in matrices]), **numbers)


NO_REQUIREMENTS = Requirements()


def features_of(kernel: Kernel) -> frozenset[str]:
    """The features that a kernel's text takes for granted; none of one that cannot be read, which is not compiled."""
    try:
        module = kernel.module
    except ShaderCompileError:
        return frozenset()
    names = module.names.union(*[tokens(binding.type) for binding in kernel.variables])
    features = {name for name, mark in (("float16", "f16"), ("int64", "i64"), ("float64", "f64")) if mark in names}
    if any(binding.dtype == "f64" for binding in kernel.bindings):
        features.add("float64")
    if any(name.startswith("subgroup") for name in names):
        features.add("subgroups")
    if module.entry is not None and "subgroup_size" in module.entry.attributes:
        features.add("subgroup_sizes")
    return frozenset(features)


def _plain(value: object) -> object:
    return [list(v) if isinstance(v, MatrixConfig) else v for v in value] if isinstance(value, tuple) else value
