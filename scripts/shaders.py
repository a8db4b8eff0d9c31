"""Translates the golden programs' kernels to HLSL and Metal's language by naga, as wgpu does on Windows and macOS.

    npm install --no-save wgsl-wasm-transpiler-bundler@0.0.1
    python scripts/shaders.py

The npm package is naga as WebAssembly. Kernels are those of targets that read parameters from a uniform buffer, which
that naga knows. Where glslang is installed (Debian's glslang-tools) it compiles what is in HLSL. DirectX's and Metal's
own compilers are not had here.
"""

from __future__ import annotations

import json
import re
import shutil
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
  try {{ return [name, format, naga.compileShader(source, format), '']; }}
  catch (error) {{ return [name, format, '', String(error)]; }}
}});
writeFileSync(process.argv[3], JSON.stringify(said));
"""


GLSLANG = "glslangValidator"
ZERO = re.compile(r"(return|=) \((\w+)((?:\[\d+\])+)\)0;")
"""A cast of 0 to an array, which DirectX's compilers take, and glslang does not."""


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


def complaint(hlsl: str, folder: Path) -> str:
    """What glslang has against a kernel in HLSL; "" if it compiles it. Arrays of 0 are declared without values."""
    file = folder / "kernel.hlsl"
    file.write_text(ZERO.sub(lambda m: f"{m[2]} zero{m[3]}; return zero;" if m[1] == "return" else ";", hlsl), "utf-8")
    command = [
        GLSLANG,
        "-D",
        "-V",
        "-S",
        "comp",
        "-e",
        "main",
        "--target-env",
        "vulkan1.1",
        "-o",
        "/dev/null",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


def main() -> int:
    kernels = sources()
    with TemporaryDirectory() as folder:
        given, answer, script = (Path(folder) / name for name in ("given.json", "answer.json", "translate.mjs"))
        given.write_text(json.dumps(kernels), "utf-8")
        script.write_text(TRANSLATE, "utf-8")
        subprocess.run(["node", str(script), str(given), str(answer)], check=True)
        said = json.loads(answer.read_text("utf-8"))
        hlsl = [(name, text) for name, language, text, _ in said if language == "hlsl" and text]
        compiled = [(name, complaint(text, Path(folder))) for name, text in hlsl] if shutil.which(GLSLANG) else []
    for name, language, _, problem in said:
        if problem and NEWER not in problem:
            print(f"{language}: {name}: {problem[:1500]}")
    outcomes = ["newer" if NEWER in problem else "not" if problem else "translated" for *_, problem in said]
    counts = Counter((language, outcome) for (_, language, *_), outcome in zip(said, outcomes, strict=True))
    for language in FORMATS.values():
        translated, newer, failed = (counts[language, outcome] for outcome in ("translated", "newer", "not"))
        print(f"{language}: {translated} kernels translated, {newer} for a newer naga, {failed} not")
    refused = [(name, words) for name, words in compiled if words]
    for name, words in refused:
        print(f"{name}: {words[:1500]}")
    print(f"hlsl: glslang compiles {len(compiled) - len(refused)} of {len(compiled)}")
    return int("not" in outcomes or bool(refused))


if __name__ == "__main__":
    sys.exit(main())
