import json
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(42)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("Device assigned: ", device)


class Tokens(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.ids = torch.randint(4, 32, (n, 8), generator=g)
        self.labels = (self.ids[:, 0] > 18).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(8).long(), "labels": self.labels[i]}


config = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config).to(device)


def compute_metrics(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    num_train_epochs=6,
    learning_rate=2e-2,
    logging_steps=1,
    save_strategy="no",
    eval_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
    dataloader_pin_memory=True,
    seed=42,
)
assert args.device.type == device.type
trainer = Trainer(
    model=model, args=args, train_dataset=Tokens(48), eval_dataset=Tokens(16), compute_metrics=compute_metrics
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
metrics = trainer.evaluate()
print(json.dumps({"losses": losses, "eval_loss": metrics["eval_loss"], "gpu": next(model.parameters()).is_cuda}))
