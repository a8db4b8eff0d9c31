"""The folder of the runtime is an npm package: what is in it, its types, and what it does in Node once installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torch_webgpu

from .test_types import COMPILER, RUNTIME

ROOT = Path(__file__).parents[2]
CONFORMS = """
import * as js from './js/index.js';
import * as safetensors from './js/safetensors.js';
import * as declared from './declared/index.js';
import * as declaredSafetensors from './declared/safetensors.js';

export const names: Record<keyof typeof declared, unknown> = js;
export const noOthers: Record<keyof typeof js, unknown> = declared;
export const model = (m: js.Model): declared.Model => m;
export const load: typeof declared.Model.load = js.Model.load;
export const tensor: typeof declared.Tensor = js.Tensor;
export const error: typeof declared.WebGPUError = js.WebGPUError;
export const open: typeof declared.openDevice = js.openDevice;
export const capabilities = js.getCapabilities satisfies () => Promise<{available: boolean}>;
export const read: typeof declaredSafetensors.readSafetensors = safetensors.readSafetensors;
"""
PROGRAM = """
import {Model, Tensor, WebGPUError, getCapabilities, type Feed} from 'torch-webgpu';
import {readSafetensors} from 'torch-webgpu/safetensors.js';

const feeds: Record<string, Feed> = {x: [[1, 2], [3, 4]], n: 3n, y: new Tensor('float16', [1, 2], [2])};
const model = await Model.load('./m', {progress_callback: e => { if (e.status === 'progress') e.loaded.toFixed(); }});
const {output} = await model.run(feeds);
for await (const token of model.generate([1, 2])) token.toFixed();
for await (const tokens of model.generate([[1], [2]])) tokens[0]?.toFixed();
const found = await getCapabilities();
if (!found.available) throw new WebGPUError('unsupported', found.reason);
console.log(output.shape, readSafetensors(new ArrayBuffer(8)), found.limits);
"""
SMOKE = """
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {createServer} from 'node:http';
import {Model, Tensor, WebGPUError, getCapabilities, openDevice} from 'torch-webgpu';
import {readSafetensors} from 'torch-webgpu/safetensors.js';

const {buffer} = new Uint8Array(readFileSync('some.safetensors'));
const {x, i, flag} = readSafetensors(buffer);
assert.deepEqual(x.tolist(), [[0, 1, 2], [3, 4, 5]]);
assert.deepEqual([i.item(), i.dtype, i.shape], [1n << 40n, 'int64', []]);
assert.deepEqual(flag.tolist(), [true, false]);
assert.deepEqual(new Tensor('int64', [1, 2], [2]).data, BigInt64Array.of(1n, 2n));
assert.throws(() => new Tensor('float32', [1, 2], [3]), RangeError);
assert.throws(() => new Tensor('float8', [1], [1]), /there is no dtype float8/);

const kind = kind => error => error instanceof WebGPUError && error.kind === kind;
const capabilities = await getCapabilities();
assert.equal(capabilities.available, false);
assert.match(capabilities.reason, /no WebGPU/);
await assert.rejects(openDevice({features: [], limits: {}}), kind('unsupported'));

const plan = readFileSync('plan.json');
const wrong = '{"format": 7, "producer": "torch-webgpu 9"}';
const answers = {'/good/plan.json': plan, '/bad/plan.json': wrong, '/text/plan.json': 'no'};
const server = createServer(({url}, response) => response.writeHead(url in answers ? 200 : 404).end(answers[url]));
await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
const at = `http://127.0.0.1:${server.address().port}`;
await assert.rejects(Model.load(`${at}/bad`), error => kind('format')(error) && /format 7/.test(error.message));
await assert.rejects(Model.load(`${at}/text`), kind('format'));
await assert.rejects(Model.load(`${at}/none`), kind('network'));
await assert.rejects(Model.load(`${at}/good`), kind('unsupported'));
await assert.rejects(Model.load(`${at}/good`, {integrity: 'sha256-0'}), kind('format'));
server.close();
console.log('done');
"""

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
needs_compiler = pytest.mark.skipif(not COMPILER.exists(), reason="there is no TypeScript: make web-setup")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's folder with the package installed, as it would be published."""
    folder = tmp_path_factory.mktemp("npm")
    npm = ("--ignore-scripts", "--offline", "--no-audit", "--no-fund")
    (packed,) = json.loads(run("npm", "pack", "--json", "--pack-destination", folder, *npm, cwd=RUNTIME))
    (folder / "package.json").write_text('{"name": "program", "private": true, "type": "module"}')
    run("npm", "install", *npm, f"./{packed['filename']}", cwd=folder)
    return folder


def test_it_has_the_runtime_and_no_more(project: Path) -> None:
    installed = project / "node_modules" / "torch-webgpu"
    modules = {path.name for path in RUNTIME.glob("*.js")}
    types = {"index.d.ts", "safetensors.d.ts"}
    assert {path.name for path in installed.iterdir()} == {"README.md", "LICENSE", "package.json", *modules, *types}
    assert (installed / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    about = json.loads((installed / "package.json").read_text())
    assert (about["name"], about["version"]) == ("torch-webgpu", torch_webgpu.__version__)
    assert not {"dependencies", "scripts"} & about.keys()
    for place in about["exports"].values():
        paths = place.values() if isinstance(place, dict) else [place]
        assert all((installed / path).is_file() for path in paths)


def test_it_works_in_node(project: Path) -> None:
    """What needs no GPU: tensors, files, and the errors that say what is missing."""
    x, i = torch.arange(6.0).view(2, 3), torch.tensor(1 << 40)
    save_file({"x": x, "i": i, "flag": torch.tensor([True, False])}, project / "some.safetensors")
    torch.webgpu.export(torch.nn.Linear(3, 2), x, project / "model")
    shutil.copy(project / "model" / "plan.json", project)
    (project / "smoke.js").write_text(SMOKE)
    assert run("node", "smoke.js", cwd=project).strip() == "done"


@needs_compiler
def test_a_program_in_typescript(project: Path) -> None:
    (project / "program.ts").write_text(PROGRAM)
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2024", "--types", ""]
    run(COMPILER, *options, "program.ts", cwd=project)
    (project / "program.ts").write_text(PROGRAM.replace("found.limits", "found.reason"))
    done = subprocess.run([COMPILER, *options, "program.ts"], cwd=project, capture_output=True, text=True, check=False)
    assert "'reason' does not exist" in done.stdout


@needs_compiler
def test_the_declared_types_are_those_of_the_modules(tmp_path: Path) -> None:
    shutil.copytree(RUNTIME, tmp_path / "js", ignore=shutil.ignore_patterns("*.d.ts"))
    (tmp_path / "declared").mkdir()
    for path in RUNTIME.glob("*.d.ts"):
        shutil.copy(path, tmp_path / "declared")
    (tmp_path / "conforms.ts").write_text(CONFORMS)
    settings = json.loads((RUNTIME / "tsconfig.json").read_text())
    settings["include"] = ["conforms.ts"]
    (tmp_path / "tsconfig.json").write_text(json.dumps(settings))
    run(COMPILER, "--project", tmp_path, cwd=tmp_path)
