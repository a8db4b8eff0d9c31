"""``torch.webgpu.export``: a model as a folder that a web server can serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from torch_webgpu.errors import ExportError
from torch_webgpu.quantized_linear import quantize_
from torch_webgpu.target import Target
from torch_webgpu.version import VERSION

from . import folder as folders
from .held import Held, HeldTensors
from .programs import Program, program_of, traced
from .report import ExportReport
from .sizes import describe, dynamic_sizes
from .tables import Tables
from .targets import needs as needed
from .targets import target_named

FORMAT = 1
"""Of the manifest; the runtime refuses another one."""
FORWARD = "forward"
_MANY_BYTES = 1 << 30


def export(
    model: torch.nn.Module | None,
    example_inputs: Any,
    folder: str | PathLike[str],
    *,
    programs: Mapping[str, tuple[Callable[..., Any], Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_shapes: Any = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    target: str | Target = "portable",
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    weights: bool = True,
    page: bool | str | PathLike[str] = True,
    metadata: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> ExportReport:
    """Writes a model as a folder that runs in a web page: plan, kernels, weights, a runtime and an ``index.html``.

    * ``example_inputs``: a tensor, a tuple of arguments, or a dictionary of keyword arguments of ``model``. Shapes and
      dtypes are those that the page can run; values make the example that the page checks itself with. Tensors of any
      device will do, meta tensors too; no adapter is needed. None: there is no program ``forward``.
    * ``folder``: is replaced whole, or not at all. It must be new, empty, or an earlier export.
    * ``programs``: more functions over the same tensors, ``{"train": (train, (images, labels))}``. Each uses the
      model, and what is in ``state``, as it does in Python, and may write into them.
    * ``state``: what else the programs use or write: modules, optimizers, tensors, or lists and dictionaries of
      tensors. An optimizer's state is made, all zero, if it has none yet.
    * ``input_names``, ``output_names``: of ``forward``, where those of its signature and result will not do.
    * ``dynamic_shapes``: which sizes of ``forward``'s inputs vary, as in :func:`torch.export.export`:
      ``{"x": {0: torch.export.Dim("batch", max=64)}}``. Each combination of listed sizes is a program, and the page
      takes the one that fits. It adds zeros where the outputs show, on the CPU, that they do not depend on what is
      added; elsewhere it takes the listed sizes only.
    * ``sizes``: those that are listed, ``{"batch": (1, 8, 64)}``; powers of two up to the largest, if left out.
    * ``target``: ``"portable"`` runs wherever WebGPU does; ``"f16"``, ``"portable-large"``, or one of
      :func:`torch_webgpu.target.names` that is a browser.
    * ``dtype``: what floating-point parameters and inputs are converted to; None leaves them.
    * ``quantize``: "int8" or "int4" gives a copy of the model linear layers with packed weights, as
      :func:`torch.webgpu.quantize_` does; the page reads them as they lie. None leaves them.
    * ``weights``: False leaves the weights out: plan and kernels only, as for a model on meta tensors.
    * ``page``: False leaves out ``index.html`` and what belongs to it; a folder's files are taken in their place.
    * ``metadata``: JSON data for the page, ``model.metadata`` there.
    * ``files``: texts that are written beside, by their names; ``model.files.json(name)`` reads one.

    Tensors that no program writes are the page's weights; the others are its state. Raises TraceError for an operator
    that cannot be exported, with its line and what to use instead; ExportError for arguments that do not fit.
    """
    started = time.perf_counter()
    chosen = target_named(target)
    model, example_inputs = prepared(plain(model), example_inputs, dtype, quantize, programs)
    held = HeldTensors(model, state or {})
    all_programs = []
    dynamic = None
    if example_inputs is not None:
        if model is None:
            raise ExportError("example_inputs are those of a model, and there is none: use programs alone")
        all_programs.append(program_of(FORWARD, model, example_inputs, False, input_names, output_names))
        dynamic = dynamic_sizes(all_programs[0], dynamic_shapes, sizes)
    elif dynamic_shapes or sizes:
        raise ExportError("dynamic_shapes and sizes are those of forward: give example_inputs")
    for name, (function, example) in (programs or {}).items():
        if any(name == program.name for program in all_programs):
            raise ExportError(f"there are two programs {name!r}")
        all_programs.append(program_of(name, function, example, torch.is_grad_enabled()))
    if not all_programs:
        raise ExportError("there is nothing to export: give example_inputs, or programs")
    tables = Tables(chosen)
    with held.initialised():
        variants = {}
        for program in all_programs:
            if dynamic is None or program is not dynamic.program:
                tables.add(traced(program, held, chosen))
                continue
            for numbers, variant in dynamic.programs:
                variants[numbers] = traced(variant, held, chosen)
                tables.add(variants[numbers])
        has_values = weights and not any(h.tensor.is_meta for h in held.all if is_used(h, tables))
        if dynamic is not None:
            tables.dynamic[FORWARD] = describe(dynamic, variants, held, has_values)
        with folders.replacing(Path(folder)) as new:
            folders.write_texts(new, files or {})
            notes = [*warnings_of(model, tables)]
            if has_values:
                notes += save_values(new, held, tables, all_programs)
            elif weights:
                raise ExportError("the model has meta tensors, without values: give weights=False (--no-weights)")
            write_manifest(new, tables, metadata or {})
            folders.copy_runtime(new / folders.RUNTIME)
            folders.copy_page(new, page)
            report = report_of(new, Path(folder), tables, notes, started)
    return report


def plain(model: Any) -> torch.nn.Module | None:
    """The module that ``torch.compile`` was given, in the place of what it made: exports have kernels of their own."""
    model = getattr(model, "_orig_mod", model)
    if model is None or isinstance(model, torch.nn.Module):
        return model
    raise ExportError(f"model is a {type(model).__name__}, not a torch.nn.Module: functions are given as programs=")


def prepared(
    model: torch.nn.Module | None, example: Any, dtype: torch.dtype | None, quantize: str | None, programs: object
) -> tuple[torch.nn.Module | None, Any]:
    """The model and its example inputs in the dtype and with the packed weights that were asked for."""
    if dtype is not None:
        model, example = converted(model, example, dtype)
    if quantize is not None:
        model = quantized(model, quantize, programs)
    return model, example


def converted(model: torch.nn.Module | None, example: Any, dtype: torch.dtype) -> tuple[torch.nn.Module | None, Any]:
    """A copy of the model with floating-point tensors of a dtype, and example inputs likewise."""
    from torch.utils import _pytree as pytree

    def cast(t: torch.Tensor) -> torch.Tensor:
        return t.to(dtype) if t.is_floating_point() else t

    return None if model is None else deepcopy(model).to(dtype), pytree.tree_map_only(torch.Tensor, cast, example)


def quantized(model: torch.nn.Module | None, dtype: str, programs: object = None) -> torch.nn.Module:
    """A copy of the model with packed weights."""
    if model is None or programs:
        raise ExportError("programs use the model that they are given: call torch.webgpu.quantize_ on it before")
    return quantize_(deepcopy(model), dtype)


def is_used(held: Held, tables: Tables) -> bool:
    """Whether some program reads or writes a held tensor."""
    return any(b.name == held.name and b.role in ("weight", "state") for b in tables.buffers)


def save_values(new: Path, held: HeldTensors, tables: Tables, programs: Sequence[Program]) -> list[str]:
    """Writes weights, state and constants, and the example; tells the buffers where their contents lie."""
    used = {h.name: h for h in held.all if is_used(h, tables)}
    of_model = {name: h.tensor for name, h in used.items() if h.of_model}
    others = {name: h.tensor for name, h in used.items() if not h.of_model and bool(h.tensor.any())}
    places = folders.save_weights(new, of_model, "model") | folders.save_weights(new, others, "state")
    for buffer in tables.buffers:
        if buffer.role in ("weight", "state"):
            buffer.source = places.get(buffer.name)
    example, notes = example_of(held, programs, tables)
    if example:
        folders.save_tensors(new / folders.EXAMPLE, example)
    return notes


def example_of(
    held: HeldTensors, programs: Sequence[Program], tables: Tables
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Inputs and outputs of each program on the CPU, from the state that is exported, as ``program/in/name``."""
    example: dict[str, torch.Tensor] = {}
    notes: list[str] = []
    for program in programs:
        inputs = [t.detach().cpu() for t in program.inputs.values() if not t.is_meta]
        if len(inputs) < len(program.inputs):
            continue
        example |= {f"{program.name}/in/{name}": t for name, t in zip(program.inputs, inputs)}
        names = tables.dynamic.get(program.name, {}).get("programs", {"": program.name}).values()
        if any(tables.programs[name]["random_blocks"] for name in names):
            notes.append(f"{program.name!r} draws random numbers, others than the CPU's: the example has no outputs")
            continue
        with held.cloned(), torch.random.fork_rng(devices=[]):
            outputs = program.run(inputs)
        example |= {f"{program.name}/out/{name}": t for name, t in outputs.items()}
    return example, notes


def warnings_of(model: torch.nn.Module | None, tables: Tables) -> list[str]:
    """What may surprise whoever opens the page."""
    notes = []
    if model is not None and model.training and (FORWARD in tables.programs or FORWARD in tables.dynamic):
        notes.append("the model is in training mode: dropout drops, batch norm counts. Call model.eval() before")
    for name, program in tables.dynamic.items():
        exact = [one["name"] for one in program["sizes"] if one["padded"] is None and len(one["sizes"]) > 1]
        if exact:
            notes.append(
                f"{name!r} takes the listed sizes of {' and '.join(exact)} only: more would change its outputs"
            )
    if (size := sum(b.size_bytes for b in tables.buffers)) > _MANY_BYTES:
        notes.append(f"{size / 2**30:.1f} GiB of buffers are more than many phones give a page")
    return notes


def write_manifest(new: Path, tables: Tables, metadata: Mapping[str, Any]) -> None:
    """Writes the kernels, the parameters, the constants, and the manifest, which has the digests of all files."""
    folders.write_json(new / folders.KERNELS, tables.sources)
    (new / folders.PARAMS).write_bytes(tables.params)
    places = folders.save_constants(new, tables.constants)
    for buffer in tables.buffers:
        if buffer.role == "constant":
            buffer.source = next(p for d, p in places.items() if buffer.name == f"constant.{d[:16]}")
    names = sorted(p.name for p in new.iterdir() if not p.name.endswith(".index.json"))
    manifest = {
        "format": FORMAT,
        "producer": f"torch-webgpu {VERSION}",
        "requires": needed(tables.requirements, tables.target),
        "metadata": dict(metadata),
        "files": {name: folders.digests(new / name) for name in names},
        "operators": tables.operators,
        "buffers": [b.to_data() for b in tables.buffers],
        "modules": tables.modules,
        "programs": tables.programs,
        **({"dynamic": tables.dynamic} if tables.dynamic else {}),
    }
    try:
        folders.write_json(new / folders.MANIFEST, manifest)
    except (TypeError, ValueError) as error:
        raise ExportError(f"metadata is no JSON: {error}") from None


def report_of(new: Path, folder: Path, tables: Tables, notes: Sequence[str], started: float) -> ExportReport:
    runtime = list((new / folders.RUNTIME).iterdir())
    plan = [new / name for name in (folders.MANIFEST, folders.KERNELS, folders.PARAMS)]
    weight_bytes = sum(p.stat().st_size for p in new.glob("*.safetensors") if p.name != folders.EXAMPLE)

    def sizes(paths: Sequence[Path]) -> tuple[int, int]:
        return sum(p.stat().st_size for p in paths), folders.compressed_bytes(paths)

    return ExportReport(
        folder=folder,
        target=tables.target.name,
        programs={name: len(program["steps"]) for name, program in tables.programs.items()},
        kernels=len(tables.modules),
        runtime_bytes=sizes(runtime),
        plan_bytes=sizes(plan),
        weight_bytes=weight_bytes,
        gpu_bytes=sum(b.size_bytes for b in tables.buffers),
        needs=needed(tables.requirements, tables.target),
        seconds=time.perf_counter() - started,
        warnings=tuple(notes),
    )
