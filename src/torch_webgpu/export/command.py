"""``torch-webgpu export``: a model that a function of a module makes, as a folder for the web."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys

import torch

from torch_webgpu.errors import WebGPUError, did_you_mean
from torch_webgpu.quantized_linear import DTYPES

from .export import export
from .targets import VARIANTS

_MAKES = "name a model, or a function that makes one without arguments"
_INPUT = re.compile(r"(?P<shape>scalar|\d+(x\d+)*)(:(?P<dtype>\w+))?")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODULE:FUNCTION", help="what makes the model, as package.module:make_model")
    command.add_argument("folder", help="is replaced whole, if it is an earlier export")
    command.add_argument(
        "--input", action="append", required=True, metavar="SHAPE[:DTYPE]", dest="inputs",
        help="one for each argument of the model: 1x1x28x28, 1x16:int64, scalar",
    )  # fmt: skip
    command.add_argument("--target", default="portable", help=f"{', '.join(VARIANTS)} (portable)")
    command.add_argument("--dtype", help="what floating-point weights are converted to: float16, bfloat16")
    command.add_argument("--quantize", choices=DTYPES, help="pack the weights of linear layers")
    command.add_argument("--train", action="store_true", help="leave the model in training mode")
    command.add_argument("--no-weights", action="store_true", help="write the plan and the kernels only")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exports, and prints the report; 1 where that cannot be."""
    try:
        torch.manual_seed(0)  # of inputs that stand for the user's
        inputs = tuple([example(text) for text in options.inputs])
        model = model_of(options.model)
        if not options.train:
            model.eval()
        dtype = None if options.dtype is None else dtype_named(options.dtype)
        report = export(
            model, inputs, options.folder, target=options.target, dtype=dtype, quantize=options.quantize,
            weights=not options.no_weights,
            metadata={"title": type(model).__name__},
        )  # fmt: skip
    except (WebGPUError, ValueError, OSError) as error:
        print(f"torch-webgpu: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # PyTorch's, of a model that such inputs do not fit
        notes = getattr(error, "__notes__", None)
        if not notes:
            raise
        print("\n".join([f"torch-webgpu: {error}", *notes]), file=sys.stderr)
        return 1
    print(report)
    return 0


def example(text: str) -> torch.Tensor:
    """An input of the shape and dtype that a text like ``1x28x28:float32`` says: normal numbers, or zeros."""
    match = _INPUT.fullmatch(text)
    if match is None:
        raise ValueError(f"--input {text} is no shape: 1x1x28x28, 1x16:int64 and scalar are some")
    shape = () if match["shape"] == "scalar" else tuple(map(int, match["shape"].split("x")))
    dtype = dtype_named(match["dtype"] or "float32")
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        known = [key for key, value in vars(torch).items() if isinstance(value, torch.dtype)]
        raise ValueError(f"PyTorch has no dtype {name!r}{did_you_mean(name, known)}")
    return dtype


def model_of(where: str) -> torch.nn.Module:
    """The model that ``package.module:function`` makes, or is."""
    module_name, _, name = where.partition(":")
    if not name:
        raise ValueError(f"{where} names no function: package.module:make_model does")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name}") from None
    if not hasattr(module, name):
        raise ValueError(f"{module_name} has no {name!r}{did_you_mean(name, vars(module))}")
    value = getattr(module, name)
    if isinstance(value, torch.nn.Module):
        return value
    if not callable(value):
        raise ValueError(f"{where} is a {type(value).__name__}: {_MAKES}")
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise ValueError(f"{where} needs arguments ({error}): {_MAKES}") from None
    except ValueError:  # a function of C has no signature
        pass
    model = value()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"{where} makes a {type(model).__name__}, not a torch.nn.Module")
    return model
