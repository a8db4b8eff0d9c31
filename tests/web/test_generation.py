"""Text generated in the page is what Python generates."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from torch_webgpu.export import export_generation
from torch_webgpu.export.generation import Generation

from .server import Site
from .test_tokenizer import trained

PROMPT = [5, 17, 300, 42, 8, 9, 10, 11, 12, 13, 14]
COLLECT = """async runs => {
  const all = [];
  for (const [ids, options] of runs) {
    const tokens = [];
    for await (const token of model.generate(ids, options)) tokens.push(token);
    all.push(tokens);
  }
  return all;
}"""


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=400, n_embd=32, n_head=4, n_layer=2, n_positions=64, bos_token_id=0, eos_token_id=None
    )
    return sharpened(GPT2LMHeadModel(config).eval())


def sharpened(model: Any) -> Any:
    """A model with larger weights, so that no two tokens are nearly as probable."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
    return model


def llama3() -> LlamaForCausalLM:
    """As Llama 3.1 and later: scaled rotary embeddings, several query heads that share a head of keys."""
    torch.manual_seed(0)
    scaling = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rope_parameters=scaling, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return sharpened(LlamaForCausalLM(config).eval())


@pytest.fixture(scope="module")
def loaded(new_tab: Any, session_site: Site, folders: Path) -> Iterator[Any]:
    """A page with the model in it."""
    words = PreTrainedTokenizerFast(tokenizer_object=trained("gpt2"))
    export_generation(gpt2(), folders / "gpt2", max_length=64, prefill=(1, 8), tokenizer=words)
    session_site.well()
    with new_tab() as opened:
        opened.goto(f"{session_site.url}/empty.html")
        opened.wait_for_selector("html[data-ready]", state="attached")
        opened.evaluate("async url => { globalThis.model = await Model.load(url); }", "/exports/gpt2/")
        yield opened


def greedy(model: Any, count: int, prompt: list[int] = PROMPT) -> list[int]:
    with torch.no_grad():
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return ids[0, len(prompt) :].tolist()


def test_greedy_tokens_and_no_new_buffers(loaded: Any) -> None:
    expected = greedy(gpt2(), 20)
    (first, third), made = loaded.evaluate(
        """async prompt => {
          const all = [], collect = async () => {
            const tokens = [];
            for await (const token of model.generate(prompt, {max_new_tokens: 20})) tokens.push(token);
            return tokens;
          };
          all.push(await collect());
          const before = counted.createBuffer;
          await collect();
          all.push(await collect());
          return [all, [before, counted.createBuffer, counted.createBindGroup]];
        }""",
        PROMPT,
    )
    assert first == third == expected
    assert made[0] == made[1]


def test_calls_of_a_step(loaded: Any) -> None:
    """What eight more tokens cost: a submission of one pass each, and nothing new; one read tells all of them."""
    few, more, dispatches = loaded.evaluate(
        """async prompt => {
          const counts = [];
          for (const max_new_tokens of [7, 15]) { // 1 + 2 + 4 steps ahead, and 8
            for (const name of Object.keys(counted)) delete counted[name];
            for await (const token of model.generate(prompt, {max_new_tokens}));
            counts.push({...counted});
          }
          return [...counts, model.manifest.programs.decode.steps.filter(s => s.length === 4).length];
        }""",
        PROMPT,
    )
    assert {name: n - few.get(name, 0) for name, n in more.items() if n != few.get(name, 0)} == {
        "submit": 8, "beginComputePass": 8, "writeBuffer": 16, "dispatchWorkgroups": 8 * dispatches,
        "setPipeline": 8 * dispatches, "setBindGroup": 8 * dispatches, "copyBufferToBuffer": 2, "mapAsync": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_sampling_is_that_of_python(loaded: Any) -> None:
    options = [{"temperature": 1.5}, {"temperature": 2, "top_k": 50, "top_p": 0.8}]
    runs = [[PROMPT, {**some, "seed": 7, "max_new_tokens": 9}] for some in options]
    results = loaded.evaluate(COLLECT, [*runs, runs[0], [PROMPT, {**runs[0][1], "seed": 8}]])
    assert results[2] == results[0] != results[3]
    if not torch.webgpu.is_available():
        pytest.skip("there is no adapter to compare with")
    model = gpt2().to("webgpu")
    for (_, chosen), tokens in zip(runs, results):
        generation = Generation(model, 64)
        torch.manual_seed(7)
        sampling = torch.tensor([chosen["temperature"], chosen.get("top_k", 0), chosen.get("top_p", 1.0)]).to("webgpu")
        step = generation.sample if "top_k" in chosen else generation.decode
        with torch.no_grad():
            generation.prefill(torch.tensor([PROMPT], device="webgpu"))
            expected = [int(step(sampling)["recent"][-1]) for _ in range(9)]
        assert tokens == expected


def test_top_p_keeps_the_most_probable(loaded: Any) -> None:
    model = gpt2()
    with torch.no_grad():
        probabilities = (model(torch.tensor([PROMPT])).logits[0, -1] / 3).softmax(-1).sort(descending=True)
    kept = int((probabilities.values.cumsum(-1) - probabilities.values < 0.5).sum())
    runs = [[PROMPT, {"temperature": 3, "top_p": 0.5, "seed": seed, "max_new_tokens": 1}] for seed in range(12)]
    drawn = {tokens[0] for tokens in loaded.evaluate(COLLECT, runs)}
    assert drawn <= set(probabilities.indices[:kept].tolist())
    assert len(drawn) > 1


def test_the_end_of_a_text(loaded: Any) -> None:
    tokens = greedy(gpt2(), 10)
    end = next(t for k, t in enumerate(tokens) if t not in tokens[:k] and k > 2)
    long = [[*PROMPT * 5, 1, 2], {"max_new_tokens": 99}]
    loaded.evaluate("end => { model.metadata.generation.eos_token_id = [end]; }", end)
    (short,) = loaded.evaluate(COLLECT, [[PROMPT, {"max_new_tokens": 10}]])
    loaded.evaluate("() => { model.metadata.generation.eos_token_id = []; }")
    (full,) = loaded.evaluate(COLLECT, [long])
    assert short == tokens[: tokens.index(end)]
    assert len(full) == 64 - 57, "there is room for no more"


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "a prompt of 0 tokens"), ([1] * 64, "a prompt of 64 tokens"), ([400], "0 to 399"), ([0.5], "0 to 399")],
)
def test_prompts_that_will_not_do(loaded: Any, ids: list[float], message: str) -> None:
    error = loaded.evaluate(f"args => failure(() => ({COLLECT})(args))", [[ids, {}]])
    assert error["name"] == "RangeError"
    assert message in error["message"]


def test_stopping(loaded: Any) -> None:
    count, error, after = loaded.evaluate(
        """async prompt => {
          const stop = new AbortController();
          let count = 0;
          const error = await failure(async () => {
            for await (const token of model.generate(prompt, {signal: stop.signal})) if (++count === 3) stop.abort();
          });
          for await (const token of model.generate(prompt)) break;
          let after = 0;
          for await (const token of model.generate(prompt, {max_new_tokens: 4})) after++;
          return [count, error.name, after];
        }""",
        PROMPT,
    )
    assert (count, error, after) == (3, "AbortError", 4)


def test_the_tokenizer_beside_a_model(loaded: Any) -> None:
    ids, error = loaded.evaluate(
        """async () => {
          const tokenizer = await model.tokenizer(), file = model.manifest.files['tokenizer.json'];
          delete model.manifest.files['tokenizer.json'];
          const error = await failure(() => model.tokenizer());
          model.manifest.files['tokenizer.json'] = file;
          return [tokenizer.encode('Return the text'), error];
        }"""
    )
    assert ids == trained("gpt2").encode("Return the text").ids
    assert "without a tokenizer" in error["message"]


def test_prompts_of_different_lengths_at_once(page: Any, folders: Path) -> None:
    """Each of a batch is continued as it is alone, by a model with the rotary embeddings of Llama 3."""
    model, prompts = llama3(), [PROMPT, [7, 8, 9], [100, 200, 300, 399, 5]]
    expected = [greedy(model, 12, prompt) for prompt in prompts]
    export_generation(model, folders / "batch", max_length=64, prefill=(1, 8), batch_size=3)
    page.evaluate("async url => { globalThis.model = await Model.load(url); }", "/exports/batch/")
    together, two, alone = page.evaluate(
        COLLECT, [[ids, {"max_new_tokens": 12}] for ids in (prompts, prompts[1:], prompts[2])]
    )
    assert [list(tokens) for tokens in zip(*together)] == expected
    assert [list(tokens) for tokens in zip(*two)] == expected[1:]
    assert alone == expected[2]
    end = next(t for t in expected[1] if t not in expected[0])
    at = expected[1].index(end)
    page.evaluate("end => { model.metadata.generation.eos_token_id = [end]; }", end)
    (ended,) = page.evaluate(COLLECT, [[prompts[:2], {"max_new_tokens": 12}]])
    assert [tokens[0] for tokens in ended] == expected[0]
    assert [tokens[1] for tokens in ended] == [*expected[1][:at], *[None] * (12 - at)]
    error = page.evaluate(f"args => failure(() => ({COLLECT})(args))", [[[*prompts, PROMPT], {}]])
    assert "4 prompts: this model was exported for 3 at once" in error["message"]


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 400}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=64, bos_token_id=0, eos_token_id=None)
    return sharpened(LlamaForCausalLM(config).eval())


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (llama, "int8"),
        (gpt2, "int4"),
        *[pytest.param(*p, marks=pytest.mark.slow) for p in ((llama, "int4"), (gpt2, "int8"))],
    ],
)
def test_packed_weights(make: Any, dtype: str, browser: Any, session_site: Site, folders: Path) -> None:
    """The page draws the tokens that the quantized model draws on the CPU, and downloads packed weights."""
    model, name = make(), f"{make.__name__}-{dtype}"
    report = export_generation(model, folders / name, max_length=64, prefill=(1,), quantize=dtype)
    embeddings = sum(m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Embedding))
    weights = sum(p.nbytes for p in model.parameters()) - embeddings
    tied = 400 * 32 if make is gpt2 else 0  # its head is its embedding, which stays there as it is
    assert report.weight_bytes < embeddings + 0.4 * weights + tied
    session_site.well()
    with browser.new_context() as context:
        opened = context.new_page()
        opened.goto(f"{session_site.url}/empty.html")
        opened.wait_for_selector("html[data-ready]", state="attached")
        opened.evaluate("async url => { globalThis.model = await Model.load(url); }", f"/exports/{name}/")
        (tokens,) = opened.evaluate(COLLECT, [[PROMPT[:4], {"max_new_tokens": 12}]])
    assert tokens == greedy(torch.webgpu.quantize_(copy.deepcopy(model), dtype), 12, PROMPT[:4])
