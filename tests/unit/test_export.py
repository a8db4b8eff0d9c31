"""Exports without a browser: folders, names, errors, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.cli import main
from torch_webgpu.errors import ExportError, TraceError
from torch_webgpu.export import export, export_generation
from torch_webgpu.export import folder as files
from torch_webgpu.export.generation import Generation
from torch_webgpu.export.targets import target_named
from torch_webgpu.target import named

load_file = pytest.importorskip("safetensors.torch", reason="exports need safetensors").load_file


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, ids: torch.Tensor, scale: float = 1.0, *, more: Any = None) -> dict[str, Any]:
        h = self.table(ids) * scale
        return {"logits": self.head(h), "hidden": (h, None, h[:, 0])}


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "plan.json").read_text())


def roles(folder: Path) -> dict[str, str]:
    return {b["name"]: b["role"] for b in manifest(folder)["buffers"] if b["role"] in ("weight", "state", "input")}


def test_names_and_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    report = export(model, {"ids": torch.tensor([[1, 2]]), "scale": 2.0}, tmp_path / "out", metadata={"title": "Tied"})
    data = manifest(tmp_path / "out")
    program = data["programs"]["forward"]
    assert [(i["name"], i["dtype"], i["shape"]) for i in program["inputs"]] == [("ids", "int64", [1, 2])]
    assert [o["name"] for o in program["outputs"]] == ["logits", "hidden.0", "hidden.2"]
    assert roles(tmp_path / "out") == {"table.weight": "weight", "ids": "input"}
    assert data["metadata"] == {"title": "Tied"}
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert list(saved) == ["table.weight"]
    assert torch.equal(saved["table.weight"], model.table.weight)
    for name, entry in data["files"].items():
        content = (tmp_path / "out" / name).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(content), sha256(content).hexdigest())
    kernels = json.loads((tmp_path / "out" / "kernels.json").read_text())
    assert {m["digest"] for m in data["modules"]} == kernels.keys()
    assert report.kernels == len(kernels)
    assert report.programs == {"forward": len(program["steps"])}
    assert "index.html" in os.listdir(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o444 == 0o444
    example = load_file(tmp_path / "out" / "example.safetensors")
    torch.testing.assert_close(example["forward/out/logits"], model(torch.tensor([[1, 2]]), 2.0)["logits"])


def test_kernels_are_what_every_browser_takes(tmp_path: Path) -> None:
    export(Tied(), torch.tensor([[1, 2]]), tmp_path / "out")
    data = manifest(tmp_path / "out")
    assert data["requires"] == {"features": [], "limits": {}}
    assert all(len(m["access"]) <= 8 for m in data["modules"])
    for source in json.loads((tmp_path / "out" / "kernels.json").read_text()).values():
        assert not {"enable", "i64", "f64", "immediate"} & set(source.replace("<", " ").replace(">", " ").split())


def test_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    before = {name: (id(t), t.clone()) for name, t in (*model.named_parameters(), *model.named_buffers())}
    kept = model(torch.randn(5, 3))  # a graph that is alive
    statistics = {name: t.clone() for name, t in model.named_buffers()}

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    export(model, torch.randn(5, 3), tmp_path / "out", programs={"train": (train, (torch.randn(5, 3),))},
           state={"optimizer": optimizer})  # fmt: skip
    after = dict((*model.named_parameters(), *model.named_buffers()))
    for name, (identity, value) in before.items():
        assert id(after[name]) == identity
        assert torch.equal(after[name], statistics.get(name, value))
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    assert optimizer.param_groups[0]["lr"] == 0.1
    kept.sum().backward()
    assert roles(tmp_path / "out")["optimizer.0.weight.momentum_buffer"] == "state"
    assert roles(tmp_path / "out")["1.running_mean"] == "state"


class Scaled(nn.Module):
    """Its argument has the name of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        return self.scale * scale


def test_an_input_may_have_the_name_of_a_weight(tmp_path: Path) -> None:
    export(Scaled(), torch.ones(2), tmp_path / "out")
    data = manifest(tmp_path / "out")
    assert [i["name"] for i in data["programs"]["forward"]["inputs"]] == ["scale"]
    assert sorted(b["role"] for b in data["buffers"] if b["name"] == "scale") == ["input", "weight"]


def test_a_buffer_that_is_assigned_is_state(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return x + self.count

    export(Counts(), torch.zeros(1), tmp_path / "out")
    assert roles(tmp_path / "out") == {"count": "state", "x": "input"}


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(Tied(), torch.tensor([[1, 2]]), out)
    (out / "mine.txt").write_text("from the last export")
    before = (out / "plan.json").read_bytes()

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item()

    with pytest.raises(TraceError):
        export(Fails(), torch.zeros(2), out)
    assert (out / "plan.json").read_bytes() == before
    export(nn.Linear(2, 2), torch.zeros(2), out)
    assert (out / "plan.json").read_bytes() != before
    assert not (out / "mine.txt").exists()
    assert os.listdir(tmp_path) == ["out"]


def test_a_failure_while_files_are_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        export(nn.Linear(2, 2), torch.zeros(2), tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_what_is_no_export_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="is no export of torch-webgpu"):
        export(nn.Linear(2, 2), torch.zeros(2), tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    export(nn.Linear(2, 2), torch.zeros(2), tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    export(nn.Linear(3, 2), torch.zeros(3), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert manifest(tmp_path / "real")["programs"]["forward"]["inputs"][0]["shape"] == [3]
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_files_of_a_page_are_new(tmp_path: Path) -> None:
    """A browser that has those of an earlier export is told so by their times; any server may read them."""
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("mine")
    (page / "index.html").chmod(0o600)
    os.utime(page / "index.html", (0, 0))
    export(nn.Linear(2, 2), torch.zeros(2), tmp_path / "out", page=page)
    status = (tmp_path / "out" / "index.html").stat()
    assert status.st_mtime > 1e9
    assert status.st_mode & 0o444 == 0o444


class Selects(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positive = x > 0
        return torch.nonzero(positive)


class Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Decomposes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(x.mT @ x)


class Checks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.mT @ x)


class Prints(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x)
        return x


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class OnTheHost(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3)


class PositionsOnTheHost(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1]).float()
        return x @ positions


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double().float()


class Transforms(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1])


@pytest.mark.parametrize(
    ("model", "operator", "line", "instead"),
    [
        (Selects(), "torch.nonzero", "return torch.nonzero(positive)", "use a mask"),
        (Reads(), "item", "return x if x.sum() > 0 else -x", "torch.where"),
        (Decomposes(), "torch.linalg.matrix_exp", "return torch.linalg.matrix_exp(x.mT @ x)", "compute it before"),
        (Checks(), "item", "return torch.linalg.inv(x.mT @ x)", "call what ends in _ex, such as inv_ex"),
        (Prints(), "of torch.Tensor.to", "print(x)", "the page reads it"),
        (Masked(), "torch.Tensor.index", "return x[x > 0]", "multiply by the mask"),
        (OnTheHost(), "neither one of its inputs", "return x + torch.ones(3)", "device=x.device"),
        (PositionsOnTheHost(), "but on cpu", "return x @ positions", "torch.arange(n, device=x.device)"),
        (Wide(), "64-bit floats", "return x.double().float()", "convert to torch.float32"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_errors_name_operator_line_and_what_to_do(
    model: nn.Module, operator: str, line: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises((TraceError, ExportError)) as caught:
        export(model, torch.randn(2, 3), tmp_path / "out")
    message = str(caught.value)
    assert "TORCH_WEBGPU_IMPLEMENTATION" not in message
    assert "'forward' cannot be exported" in message
    assert f"{__file__}:" in message
    for part in (operator, line, instead):
        assert part in message
    assert not (tmp_path / "out").exists()


def test_a_compiled_model_is_exported_as_the_plain_one(tmp_path: Path) -> None:
    """Also one of which a part is compiled, and compiled functions."""
    model, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(1, 3)
    export(torch.compile(model), x, tmp_path / "out", programs={"twice": (torch.compile(lambda x: model(x) * 2), x)})
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"0.weight", "0.bias"}
    example = load_file(tmp_path / "out" / "example.safetensors")
    torch.testing.assert_close(example["twice/out/output"], 2 * model(x).detach())
    model[0] = torch.compile(model[0])
    export(model, x, tmp_path / "out")


@pytest.mark.parametrize("n", [60, 17, 5000])
def test_fourier_transforms_are_exported(n: int, tmp_path: Path) -> None:
    export(Transforms(), torch.randn(2, n), tmp_path / "out")
    assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((None, None), {}, "nothing to export"),
        ((None, torch.zeros(1)), {}, "give|programs alone"),
        ((nn.Linear(2, 2), (torch.zeros(2), torch.zeros(2))), {}, "do not fit its arguments"),
        ((torch.sin, torch.zeros(2)), {}, "not a torch.nn.Module: functions are given as programs="),
        ((nn.Linear(2, 2).double(), torch.zeros(2)), {}, "weight, bias have 64-bit floats"),
        ((nn.Identity(), torch.zeros(2, dtype=torch.complex128)), {}, "input has 64-bit floats"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"output_names": ["a", "b"]}, "has 1 outputs"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"input_names": ["a", "b"]}, "needs as many"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"target": "h200-dawn"}, "is no browser"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"state": {"cache": 3}}, "without tensors"),
        ((nn.Linear(2, 2, device="meta"), torch.zeros(2)), {}, "weights=False"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"metadata": {"loss": float("nan")}}, "metadata is no JSON"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"metadata": {"classes": torch.zeros(2)}}, "metadata is no JSON"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"files": {"../outside.txt": "x"}}, "files has '../outside.txt'"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"files": {".hidden": "x"}}, "files has '.hidden'"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"files": {"plan.json": "x"}}, "which the export writes itself"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"files": {"model.safetensors": "x"}}, "which the export writes itself"),
        ((nn.Linear(2, 2), torch.zeros(2)), {"files": {"index.html": "x"}}, "the page has index.html"),
    ],
)
def test_arguments_that_do_not_fit(arguments: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export(*arguments, tmp_path / "out", **options)
    assert not os.listdir(tmp_path)


def test_what_the_model_itself_raises_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        export(nn.Linear(2, 2), torch.zeros(1, 3), tmp_path / "out")
    assert "while 'forward' was exported" in caught.value.__notes__[0]
    assert not (tmp_path / "out").exists()


def test_a_page_rounds_by_itself() -> None:
    """It runs on other GPUs than the one whose target it was made for."""
    assert not target_named(replace(named("browser"), rounds_f16=True)).rounds_f16


def test_an_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'portable'"):
        export(nn.Linear(2, 2), torch.zeros(2), tmp_path / "out", target="portabel")


def test_meta_tensors_give_plan_and_kernels(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
        report = export(model, torch.empty(1, 8, 64), tmp_path / "out", weights=False)
    assert report.weight_bytes == 0
    assert report.kernels > 3
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_shards(tmp_path: Path) -> None:
    tensors = {name: torch.full((10,), float(k)) for k, name in enumerate("abcde")}
    assert files.sharded(tensors, "model", limit=80) == {
        "model-00001-of-00003.safetensors": ["a", "b"],
        "model-00002-of-00003.safetensors": ["c", "d"],
        "model-00003-of-00003.safetensors": ["e"],
    }
    places = files.save_weights(tmp_path, tensors, "model")
    for name, (file, start, size) in places.items():
        assert (tmp_path / file).read_bytes()[start : start + size] == tensors[name].numpy().tobytes()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_models.py").write_text("from torch import nn\ndef make_model():\n    return nn.Conv2d(1, 2, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["export", "my_models:make_model", "out", "--input", "1x1x28x28", "--target", "portable"]) == 0
    assert "programs  forward" in capsys.readouterr().out
    assert (tmp_path / "out" / "index.html").exists()
    assert main(["export", "my_models:make_modle", "out", "--input", "1x1x28x28"]) == 1
    assert "did you mean 'make_model'" in capsys.readouterr().err
    assert main(["export", "my_models:make_model", "out", "--input", "1,2"]) == 1
    assert "is no shape" in capsys.readouterr().err
    assert main(["export", "my_models:make_model", "out", "--input", "1x3x28x28"]) == 1
    assert "to have 1 channels, but got 3 channels" in capsys.readouterr().err
    for name, message in (("nn:Conv2d", "needs arguments (missing"), ("nn:__name__", "is a str: name a model")):
        assert main(["export", f"torch.{name}", "out", "--input", "1"]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "packed"), [("int8", "I8"), ("int4", "I32")])
def test_the_command_packs_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, packed: str) -> None:
    (tmp_path / "linear_model.py").write_text("from torch import nn\ndef make_model():\n    return nn.Linear(64, 8)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["export", "linear_model:make_model", "out", "--input", "1x64", "--quantize", dtype]) == 0
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["weight"]["dtype"] == packed
    with pytest.raises(SystemExit):
        main(["export", "linear_model:make_model", "out", "--input", "1x64", "--quantize", "int2"])


def test_generation_with_packed_weights(tmp_path: Path) -> None:
    """As many dispatches as with plain weights, where a browser binds ten buffers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1, "vocab_size": 96}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    counts = []
    for dtype in (None, "int8", "int4"):
        folder = tmp_path / str(dtype)
        export_generation(model, folder, max_length=32, prefill=(1, 8), quantize=dtype, target="chrome")
        plan = json.loads((folder / "plan.json").read_text())
        counts.append({name: len(program["steps"]) for name, program in plan["programs"].items()})
    assert counts[0] == counts[1] == counts[2]
    assert "weight" in dict(model.lm_head.named_parameters())  # a copy was quantized


def test_a_process_without_an_adapter(tmp_path: Path) -> None:
    program = (
        "import sys, torch, torch_webgpu\n"
        "assert not torch.webgpu.is_available()\n"
        "print(torch.webgpu.export(torch.nn.Linear(3, 2), torch.zeros(4, 3), sys.argv[1]))\n"
    )
    nothing = {"VK_DRIVER_FILES": "/nonexistent", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")], env={**os.environ, **nothing}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WebGPU, no more" in done.stdout


LANGUAGE_MODELS: dict[str, dict[str, int]] = {
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
    "Qwen2": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip


def language_model(name: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="its models are exported")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=400, eos_token_id=None, **LANGUAGE_MODELS[name])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_programs_of_generation(name: str, tmp_path: Path) -> None:
    """They generate what Transformers generates; a page runs the same programs (tests/web/test_generation.py)."""
    model = language_model(name)
    prompt = [5, 17, 300, 42, 8, 9, 10]
    with torch.no_grad():
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False, pad_token_id=0)[0, 7:]
        for step in ("decode", "sample"):
            generation = Generation(model, 32)
            generation.prefill(torch.tensor([prompt[:4]]))
            for token in prompt[4:]:
                generation.prefill(torch.tensor([[token]]))
            greedy = torch.tensor([0.0, 0.0, 1.0])
            tokens = [int(getattr(generation, step)(greedy)["recent"][-1]) for _ in range(9)]
            assert tokens == expected.tolist()
    report = export_generation(model, tmp_path / "out", max_length=32, prefill=(8,))
    assert set(report.programs) == {"prefill_1", "prefill_8", "decode", "sample"}
    data = manifest(tmp_path / "out")
    assert data["metadata"]["generation"]["prefill"] == [1, 8]
    states = {b["name"]: b for b in data["buffers"] if b["role"] == "state"}
    assert {"cache.0.keys", "cache.1.values", "cache.0.length", "logits", "recent"} <= states.keys()
    assert not any("source" in b for b in states.values()), "what is zero is not downloaded"


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_generation_after_prompts_of_different_lengths(name: str, tmp_path: Path) -> None:
    """Padding on the left changes nothing; the state knows how much of it there is."""
    model = language_model(name)
    prompts = [[5, 17, 300, 42, 8, 9, 10], [3, 4], [11, 12, 13, 14]]
    padding = [7 - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * n + prompt for n, prompt in zip(padding, prompts)])
    with torch.no_grad():
        generation = Generation(model, 32, batch_size=3)
        generation.prefill(ids[:, :4], torch.tensor(padding))
        for k in range(4, 7):
            generation.prefill(ids[:, k : k + 1], torch.tensor(padding))
        greedy = torch.tensor([0.0, 0.0, 1.0])
        tokens = torch.stack([generation.decode(greedy)["recent"][-1].clone() for _ in range(9)], dim=1)
        for row, prompt in zip(tokens, prompts):
            alone = model.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False, pad_token_id=0)
            assert row.tolist() == alone[0, len(prompt) :].tolist()
    export_generation(model, tmp_path / "out", max_length=32, prefill=(8,), batch_size=3)
    data = manifest(tmp_path / "out")
    assert data["metadata"]["generation"]["batch_size"] == 3
    assert [i["name"] for i in data["programs"]["prefill_8"]["inputs"]] == ["input_ids", "padding"]
    assert "padding" in {b["name"] for b in data["buffers"] if b["role"] == "state"}


def test_generation_refuses_lengths_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="from 1 to max_length"):
        export_generation(language_model("GPT2"), tmp_path / "out", max_length=32, prefill=(64,))
    with pytest.raises(ExportError, match="batch_size is a number of prompts"):
        export_generation(language_model("GPT2"), tmp_path / "out", batch_size=0)
