"""Translates the golden programs' kernels to HLSL and Metal's language by naga, as wgpu does on Windows and macOS.

    npm install --no-save wgsl-wasm-transpiler-bundler@0.0.1
    python scripts/shaders.py

The npm package is naga as WebAssembly. Kernels are those of targets that read parameters from a uniform buffer, which
that naga knows. Nothing compiles the result: DirectX's and Metal's compilers are not had here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.programs import PROGRAMS  # noqa: E402

from torch_webgpu.plan import trace  # noqa: E402
from torch_webgpu.target import named  # noqa: E402
from torch_webgpu.wgsl.link import link  # noqa: E402

FORMATS = {"d3d12": "hlsl", "metal": "metal"}
NEWER = "atomic CompareExchange"
"""What this naga cannot write in HLSL, and wgpu 29's can: https://github.com/gfx-rs/wgpu/pull/7658."""
PACKAGE = "wgsl-wasm-transpiler-bundler"
TRANSLATE = f"""
import {{ readFileSync, writeFileSync }} from 'node:fs';
const folder = process.cwd() + '/node_modules/{PACKAGE}/wgsl_wasm_transpiler_bg';
const naga = await import(folder + '.js');
const {{ instance }} = await WebAssembly.instantiate(
  readFileSync(folder + '.wasm'), {{ './wgsl_wasm_transpiler_bg.js': naga }});
naga.__wbg_set_wasm(instance.exports);
instance.exports.__wbindgen_start?.();
const said = JSON.parse(readFileSync(process.argv[2])).map(([name, format, source]) => {{
  try {{ return [name, format, naga.compileShader(source, format).length, '']; }}
  catch (error) {{ return [name, format, 0, String(error)]; }}
}});
writeFileSync(process.argv[3], JSON.stringify(said));
"""


def sources() -> list[tuple[str, str, str]]:
    """Name, format and WGSL of every kernel."""
    found = []
    for target_name, language in FORMATS.items():
        target = replace(named(target_name), immediates_bytes=0)
        for name, program in PROGRAMS.items():
            inputs = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in program.inputs]
            plan = trace(program.run, *inputs, target=target)
            found += [(f"{target_name} {name}: {k.name}", language, link(k, target).source) for k in plan.kernels]
    return found


def main() -> int:
    kernels = sources()
    with TemporaryDirectory() as folder:
        given, answer, script = (Path(folder) / name for name in ("given.json", "answer.json", "translate.mjs"))
        given.write_text(json.dumps(kernels), "utf-8")
        script.write_text(TRANSLATE, "utf-8")
        subprocess.run(["node", str(script), str(given), str(answer)], check=True)
        said = json.loads(answer.read_text("utf-8"))
    for name, language, _, problem in said:
        if problem and NEWER not in problem:
            print(f"{language}: {name}: {problem[:1500]}")
    outcomes = ["newer" if NEWER in problem else "not" if problem else "translated" for *_, problem in said]
    counts = Counter((language, outcome) for (_, language, *_), outcome in zip(said, outcomes, strict=True))
    for language in FORMATS.values():
        translated, newer, failed = (counts[language, outcome] for outcome in ("translated", "newer", "not"))
        print(f"{language}: {translated} kernels translated, {newer} for a newer naga, {failed} not")
    return int("not" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
