import json
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, set_seed

set_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
folder = tempfile.mkdtemp()
LlamaForCausalLM(config).save_pretrained(folder)

model = AutoModelForCausalLM.from_pretrained(folder, device_map="cuda", dtype=torch.float32)
print(model.device, model.hf_device_map if hasattr(model, "hf_device_map") else "")
inputs = {"input_ids": torch.arange(6).view(1, -1)}
inputs = {k: v.to("cuda") for k, v in inputs.items()}
inputs["attention_mask"] = torch.ones_like(inputs["input_ids"]).to(model.device)
with torch.no_grad():
    outputs = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)
    logits = model(**inputs).logits.float()
assert outputs.is_cuda and model.device.type == "cuda"
auto = AutoModelForCausalLM.from_pretrained(folder, device_map="auto", dtype=torch.float16)
print(auto.device, next(auto.parameters()).dtype)
auto = auto.to("cuda")
half = auto(inputs["input_ids"].to(auto.device)).logits.float()
assert torch.allclose(half, logits, atol=5e-2)
print(json.dumps({"tokens": outputs[0].tolist(), "logits": logits.abs().mean().item(), "gpu": outputs.is_cuda}))
