"""Random little programs that mean the same on every device: what ``soak.py`` runs.

A program is a function of a random number generator and a device that returns its results. All of its randomness comes
from that generator, so that the same seed gives the same program on the CPU; integers must come out equal, floating
point numbers within what rounding explains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

Program = Callable[[random.Random, torch.device], list[torch.Tensor]]
FLOATS = (torch.float32, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
# (relative, absolute): a few roundings of the largest intermediate values these programs have.
TOLERANCES = {torch.float32: (2e-3, 2e-3), torch.float16: (2e-2, 2e-2), torch.bfloat16: (8e-2, 8e-2)}


def mismatch(ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest error as a part of what is allowed (0 to 1). AssertionError beyond that, or for unlike tensors."""
    largest = 0.0
    for index, (here, there) in enumerate(zip(ours, expected, strict=True)):
        actual, wanted = here.detach().cpu(), there.detach().cpu()
        if actual.dtype != wanted.dtype or actual.shape != wanted.shape:
            raise AssertionError(f"result {index} is {actual.dtype} {actual.shape}, not {wanted.dtype} {wanted.shape}")
        if not actual.dtype.is_floating_point:
            if not torch.equal(actual, wanted):
                raise AssertionError(f"result {index} differs in {int((actual != wanted).sum())} of {actual.numel()}")
            continue
        relative, absolute = TOLERANCES[actual.dtype]
        actual, wanted = actual.double(), wanted.double()
        wrong = (actual.isnan() != wanted.isnan()) | (actual.isinf() != wanted.isinf())
        error = ((actual - wanted).abs() / (absolute + relative * wanted.abs())).nan_to_num(0, 0, 0)
        part = float("inf") if wrong.any() else float(error.max()) if error.numel() else 0.0
        if part > 1:
            where = int(error.argmax())
            numbers = f"{actual.flatten()[where]} instead of {wanted.flatten()[where]}"
            raise AssertionError(f"result {index} ({here.dtype}) is {part:.3g} times beyond its tolerance: {numbers}")
        largest = max(largest, part)
    return largest


def floats(rng: random.Random, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers around zero, on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rng.getrandbits(32))).to(dtype)


def integers(rng: random.Random, shape: Sequence[int], high: int = 100) -> torch.Tensor:
    return torch.randint(0, high, tuple(shape), generator=torch.Generator().manual_seed(rng.getrandbits(32)))


class Carried:
    """State that lives as long as the soak.

    Integers whose every bit depends on every step before, and a moving average, which forgets rounding errors but not
    a value that was once lost.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.rng = random.Random(seed)
        self.device = device
        self.steps = 0
        self.words = integers(self.rng, (6, 10)).to(torch.int32).to(device)
        self.longs = integers(self.rng, (33,)).to(device)
        self.average = floats(self.rng, (7, 9)).to(device)
        self.half = floats(self.rng, (5, 3), torch.float16).to(device)

    def step(self) -> None:
        self.steps += 1
        row, shift = self.rng.randrange(6), self.rng.randrange(1, 10)
        self.words.mul_(1103515245).add_(12345 + shift)
        self.words[row] ^= self.words.roll(shift, 1)[row - 1]
        self.longs.mul_(6364136223846793005).add_(self.words.view(-1)[:33])
        fresh = floats(self.rng, (7, 9)).to(self.device)
        self.average.mul_(0.9).add_(fresh.tanh(), alpha=0.1)
        self.half.lerp_(fresh[:5, :3].half(), 0.25)

    def results(self) -> list[torch.Tensor]:
        return [self.words, self.longs, self.average, self.half]


def train(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """A few training steps of one of three small networks with one of three optimizers; a new batch size each."""
    model, data, loss = rng.choice((_mlp, _convolutional, _transformer))(rng)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(floats(rng, p.shape) * (0.5 if p.ndim < 2 else p[0].numel() ** -0.5))
    model = model.to(device)
    choice = rng.randrange(3)
    if choice == 0:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    else:
        # A large epsilon: a gradient near zero has no sign to speak of, and Adam's step is hardly more than its sign.
        kind = (torch.optim.Adam, torch.optim.AdamW)[choice - 1]
        optimizer = kind(model.parameters(), lr=0.01, eps=1e-2)
    losses = []
    for _ in range(rng.randint(1, 4)):
        batch = [t.to(device, non_blocking=rng.random() < 0.5) for t in data(rng)]
        optimizer.zero_grad(set_to_none=rng.random() < 0.5)
        value = loss(model(batch[0]), batch[1])
        value.backward()
        if rng.random() < 0.3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(value.detach())
        if rng.random() < 0.3:
            value.item()
    return [*losses, *model.parameters()]


Network = tuple[nn.Module, Callable[[random.Random], list[torch.Tensor]], Callable[..., torch.Tensor]]


def _mlp(rng: random.Random) -> Network:
    width, hidden = rng.randint(1, 24), rng.randint(1, 40)
    model = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 3))
    return model, lambda rng: _batch(rng, lambda n: floats(rng, (n, width)), lambda n: floats(rng, (n, 3))), F.mse_loss


def _convolutional(rng: random.Random) -> Network:
    channels, side = rng.randint(1, 6), rng.randint(6, 12)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(channels, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    data = lambda rng: _batch(rng, lambda n: floats(rng, (n + 1, 1, side, side)), lambda n: integers(rng, (n + 1,), 5))
    return model, data, F.cross_entropy


def _transformer(rng: random.Random) -> Network:
    width, length = 4 * rng.randint(1, 5), rng.randint(2, 9)

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, width)
            self.norm = nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 11)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            q, k, v = self.qkv(self.norm(x)).view(*tokens.shape, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(x + y.transpose(1, 2).reshape(x.shape)).flatten(0, 1)

    data = lambda rng: _batch(rng, lambda n: integers(rng, (n, length), 11), lambda n: integers(rng, (n * length,), 11))
    return Small(), data, F.cross_entropy


def _batch(
    rng: random.Random, inputs: Callable[[int], torch.Tensor], targets: Callable[[int], torch.Tensor]
) -> list[torch.Tensor]:
    count = rng.randint(1, 17)
    return [inputs(count), targets(count)]


def aliases(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Views of views, written through in every order, some of them dropped on the way. Exact."""
    base = integers(rng, (rng.randint(2, 9), rng.randint(2, 9), 4)).to(rng.choice(INTEGERS[:4])).to(device)
    pool = [base]
    for _ in range(rng.randint(5, 60)):
        t = rng.choice(pool)
        choice = rng.randrange(8)
        if choice == 0 and t.ndim:
            pool.append(t[rng.randrange(t.shape[0])])
        elif choice == 1 and t.ndim:
            start = rng.randrange(t.shape[0])
            pool.append(t[start :: rng.randint(1, 3)])
        elif choice == 2:
            pool.append(t.flip(0) if rng.random() < 0.5 else t.transpose(0, -1) if t.ndim else t)
        elif choice == 3:
            t.add_(rng.randint(1, 9))
        elif choice == 4 and t.ndim:
            t[0].mul_(3).sub_(t[-1])
        elif choice == 5:
            t.copy_(rng.choice(pool).sum().to(t.dtype))
        elif choice == 6:
            pool.append(t.clone() * 2 + t)
        elif len(pool) > 3:
            pool.pop(rng.randrange(1, len(pool)))
    return [base, *(t.clone() for t in pool)]


def transfers(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Up and down in every dtype, whole and in strided pieces, waiting and not."""
    results = []
    for _ in range(rng.randint(1, 8)):
        dtype = rng.choice((*FLOATS, *INTEGERS))
        source = integers(rng, (rng.randint(0, 40), rng.randint(1, 300)), 2 if dtype == torch.bool else 100).to(dtype)
        there = source.to(device, non_blocking=rng.random() < 0.5)
        choice = rng.randrange(5)
        if choice == 0:
            there[:, ::2] = source[:, ::2]
        elif choice == 1:
            there = there.t().cpu().to(device)
        elif choice == 2 and source.numel():
            results.append(torch.tensor(float(there[-1, -1].item())))
        elif choice == 3:
            there[source.shape[0] // 2 :].copy_(source[source.shape[0] // 2 :], non_blocking=True)
        else:
            there = there.to(rng.choice((torch.float32, torch.int64)))
        results.append(there)
    return results


def chains(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Long elementwise chains with reductions, broadcasting and changes of dtype: what fuses."""
    rows, columns = rng.randint(1, 70), rng.randint(1, 130)
    x, scale = floats(rng, (rows, columns)).to(device), floats(rng, (columns,)).to(device)
    results = []
    for _ in range(rng.randint(3, 80)):
        choice = rng.randrange(10)
        if choice == 0:
            x = x * scale + rng.random()
        elif choice == 1:
            x = torch.softmax(x, rng.randrange(2)) * columns**0.5
        elif choice == 2:
            x = F.layer_norm(x, (columns,), scale, eps=0.1)
        elif choice == 3:
            x = torch.where(x > rng.random(), x.sigmoid(), F.silu(x))
        elif choice == 4:
            x = (x - x.mean(0)).clamp(-2, 2)
        elif choice == 5:
            x = (x.tanh() + x.to(torch.float16).float()) / 2
        elif choice == 6:
            results.append(x.amax(1))
        elif choice == 7:
            x = F.gelu(x)
        elif choice == 8:
            results.append(x.double().float() if device.type == "cpu" else x + 0)
        else:
            x = x.tanh_() if rng.random() < 0.5 else x.neg().exp().clamp_(max=3)
    # Half precision in the middle: an ulp there is one in five hundred of the result.
    return [t.half() for t in (*results, x)]


def frees(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Tensors of all sizes made, used and dropped in any order; cycles; the survivors must be whole. Exact."""
    kept: list[torch.Tensor] = []
    for index in range(rng.randint(5, 120)):
        size = rng.choice((1, 3, 64, 1000, 5000, 70_000))
        kept.append(torch.full((rng.randint(1, size),), index, dtype=rng.choice(INTEGERS[:3]), device=device))
        if len(kept) > 4 and rng.random() < 0.7:
            kept.pop(rng.randrange(len(kept)))
        if rng.random() < 0.2:
            cycle: list[object] = [kept[-1] + 1]
            cycle.append(cycle)
        if rng.random() < 0.1:
            torch.empty(1000, device=device).fill_(float("nan"))
    return [t.sum() for t in kept] + kept


def reads(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Programs whose course depends on what was computed: item(), nonzero, boolean masks, sorting. Exact."""
    x = integers(rng, (rng.randint(2, 400),), 1000).to(device)
    for _ in range(rng.randint(1, 10)):
        limit = x.max().item() // 2
        if limit % 3 == 0:
            x = x[x > limit // 2] if int((x > limit // 2).sum()) > 1 else x + 1
        elif limit % 3 == 1:
            x = torch.cat((x.sort().values[: rng.randint(2, 50)], x.nonzero().flatten()[:5], x[:1] + 7))
        else:
            x = x.cumsum(0) % 997 + x.unique().numel()
        if bool((x == 0).all()):
            x = x + 3
    return [x, x.bincount(minlength=3)[:50], x.argmax(), torch.tensor(len(x.tolist()))]


def half_precision(rng: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Products, convolutions and autograd in float16 and bfloat16, under autocast and without it."""
    dtype = rng.choice((torch.float16, torch.bfloat16))
    m, k, n = (rng.randint(1, 40) for _ in range(3))
    a, b = floats(rng, (m, k), dtype).to(device), (floats(rng, (k, n)) * k**-0.5).to(dtype).to(device)
    a.requires_grad_()
    y = (a @ b).tanh()
    (y.float() * 0.1).sum().backward()
    results = [y, a.grad]
    x, w = floats(rng, (2, 3, rng.randint(4, 11), 7)).to(device), (floats(rng, (4, 3, 3, 3)) * 0.2).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        results.append(F.conv2d(x, w, padding=1).relu())
    return results


PROGRAMS: dict[str, Program] = {
    "train": train,
    "aliases": aliases,
    "transfers": transfers,
    "chains": chains,
    "frees": frees,
    "reads": reads,
    "half": half_precision,
}
