"""Calls every name of the compatibility matrix in one process, and writes what came of it as JSON.

``python -m tests.translate.calling TARGET FILE``, or in two processes the names of ``torch.distributed``: with a rank,
0 or 1, and a path that both can write beside.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from torch_webgpu.translation import table
from torch_webgpu.translation.monitor import Monitor
from torch_webgpu.translation.replacements import Replacements

from .examples import TOGETHER, example, world

# Of the warnings ours are told; PyTorch's own repeat.
OURS = "does nothing here"


def plain(value: Any) -> Any:
    """A result as JSON holds it: numbers of a tensor, else nothing."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        return [str(value.dtype), value.device.type, value.detach().cpu().double().flatten().tolist()]
    return None


def call(name: str, monitor: Monitor, names: dict[str, Any]) -> dict[str, Any]:
    """What came of calling ``name`` twice."""
    expression = example(name)
    assert expression is not None
    module, _, _ = name.rpartition(".")
    names.update(f=table.look_up(name), m=table.look_up(module), name=name)
    outcome: dict[str, Any] = {"raised": "", "kind": "", "value": None, "said": []}
    for _ in range(2):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                outcome["value"] = plain(eval(expression, names))
            except Exception as error:
                outcome |= {"kind": type(error).__name__, "raised": str(error)}
        outcome["said"].append(
            [str(one.message) for one in heard if name in str(one.message) and OURS in str(one.message)]
        )
    calls = monitor.calls.get(name)
    outcome["count"] = 0 if calls is None else calls.count
    outcome["place"] = "" if calls is None else calls.location
    return outcome


def main(target: str, file: str, rank: str = "", meeting: str = "") -> None:
    replacements, monitor = Replacements(), Monitor()
    torch.manual_seed(0)
    c = torch.randn(4, 4)
    table.install(target, replacements, monitor)
    here = torch.device("webgpu", 0) if target == "webgpu" else torch.device(target)
    names: dict[str, Any] = {"torch": torch, "x": world, "t": c.to(here), "c": c, "here": here, "__name__": "__main__"}
    if meeting:
        names |= {"dist": torch.distributed, "rank": int(rank), "b": torch.ones(2), "meeting": meeting}
        torch.distributed.init_process_group("gloo", f"file://{meeting}-0", rank=int(rank), world_size=2)
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        names["folder"] = folder
        for name, row in table.table().items():
            if (name in TOGETHER) == bool(meeting) and table.is_there(name) and not row.removed and example(name):
                outcomes[name] = call(name, monitor, names)
    replacements.restore()
    Path(file).write_text(json.dumps(outcomes), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
