"""Sentences of different lengths: a custom batch that pins itself, workers, a prefetcher with a stream of its own."""

import json
import random

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

use_cuda = torch.cuda.is_available()
device = torch.device("cuda:0" if use_cuda else "cpu")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)


class Sentences(Dataset):
    def __init__(self, n=48):
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(3, 9, (n,), generator=generator)
        self.items = [torch.randint(1, 20, (int(length),), generator=generator) for length in lengths]
        self.labels = [float((item % 2).float().mean() > 0.5) for item in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index], self.labels[index]


class Batch:
    def __init__(self, samples):
        samples.sort(key=lambda sample: len(sample[0]), reverse=True)
        self.lengths = torch.tensor([len(tokens) for tokens, _ in samples])
        self.tokens = pad_sequence([tokens for tokens, _ in samples], batch_first=True)
        self.labels = torch.tensor([label for _, label in samples])

    def pin_memory(self):
        self.tokens = self.tokens.pin_memory()
        self.labels = self.labels.pin_memory()
        return self

    def to(self, device, non_blocking=False):
        self.tokens = self.tokens.to(device, non_blocking=non_blocking)
        self.labels = self.labels.to(device, non_blocking=non_blocking)
        return self


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() % 2**32)


class Prefetcher:
    """The next batch is on its way while this one is worked on."""

    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.next = next(self.loader)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = self.next.to("cuda", non_blocking=True)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            batch.tokens.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.rnn = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 1))

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths.cpu(), batch_first=True)
        self.rnn.flatten_parameters()
        out, (hidden, _) = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        assert out.shape[:2] == tokens.shape
        return self.head(torch.cat([hidden[0], hidden[1]], dim=1)).squeeze(1)


if __name__ == "__main__":
    seed_everything(5)
    data = Sentences()
    weights = torch.where(torch.tensor(data.labels) > 0.5, 1.0, 2.0)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        data,
        batch_size=12,
        sampler=WeightedRandomSampler(weights, len(data), generator=generator),
        collate_fn=Batch,
        num_workers=2,
        pin_memory=use_cuda,
        worker_init_fn=seed_worker,
        persistent_workers=True,
        prefetch_factor=2,
    )
    model = Classifier().to(device)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.2, device=device))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    losses, hits, count = [], 0, 0
    for epoch in range(4):
        for batch in Prefetcher(loader):
            assert batch.tokens.is_cuda and batch.labels.get_device() == 0
            optimizer.zero_grad()
            logits = model(batch.tokens, batch.lengths)
            loss = criterion(logits, batch.labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            hits += ((logits > 0) == (batch.labels > 0.5)).sum().item()
            count += len(batch.labels)
    torch.cuda.synchronize()
    print(json.dumps({"losses": losses, "accuracy": hits / count, "gpu": next(model.parameters()).is_cuda}))
