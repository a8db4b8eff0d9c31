"""Workers that multiprocessing spawns: each loads the checkpoint onto the GPU and answers requests from a queue."""

import argparse
import json
import os
import tempfile

import torch
import torch.multiprocessing as mp
import torch.nn as nn


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def serve(rank, path, requests, answers):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    device = torch.device("cuda")
    model = build().to(device)
    checkpoint = torch.load(path, map_location="cuda:0", weights_only=True)
    assert all(value.is_cuda for value in checkpoint["model"].values())
    model.load_state_dict(checkpoint["model"])
    model.eval()
    while (request := requests.get()) is not None:
        number, inputs = request
        with torch.inference_mode(), torch.cuda.device(device):
            answers.put((number, model(inputs.to(device, non_blocking=True)).softmax(-1).cpu(), device.type))


def square(x):
    return (torch.tensor(x, device="cuda") ** 2).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", default="0")
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpus
    mp.set_start_method("spawn", force=True)
    torch.manual_seed(0)
    model = build().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.linspace(-1, 1, 32).view(8, 4).cuda()
    y = torch.tensor([0, 1] * 4).cuda()
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    path = os.path.join(tempfile.mkdtemp(), "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    requests, answers = mp.Queue(), mp.Queue()
    workers = mp.spawn(serve, args=(path, requests, answers), nprocs=args.workers, join=False)
    for number, chunk in enumerate(x.cpu().split(2)):
        requests.put((number, chunk))
    got = dict(answers.get()[:2] for _ in range(4))
    for _ in range(args.workers):
        requests.put(None)
    workers.join()
    with torch.no_grad():
        expected = model(x).softmax(-1).cpu()
    torch.testing.assert_close(torch.cat([got[n] for n in range(4)]), expected, rtol=1e-4, atol=1e-5)
    with mp.get_context("spawn").Pool(2) as pool:
        squares = pool.map(square, [1.0, 2.0, 3.0])
    print(json.dumps({"losses": losses, "squares": squares, "answers": expected.tolist(), "gpu": x.is_cuda}))


if __name__ == "__main__":
    main()
