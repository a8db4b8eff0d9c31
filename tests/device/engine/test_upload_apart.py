"""Uploads from any thread, whose bytes are copied without the engine's lock."""

import threading

import pytest
import torch

from torch_webgpu.engine import apart
from torch_webgpu.engine.apart import upload_apart
from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.upload_memory import SMALLEST_BYTES

N = SMALLEST_BYTES // 4


def uploads():
    return engine().device(0).opened.transfer.uploads


def test_an_upload_comes_between_what_is_recorded_before_and_after():
    x = torch.ones(N, device="webgpu")
    before = x + 1
    assert upload_apart(x, torch.full((N,), 5.0))
    after = x + 1
    assert before.cpu().eq(2).all()
    assert after.cpu().eq(6).all()


def test_a_large_one_goes_in_pieces(monkeypatch):
    monkeypatch.setattr(apart, "LARGEST_BYTES", 2 * SMALLEST_BYTES)
    monkeypatch.setattr(apart, "PIECE_BYTES", SMALLEST_BYTES + 1000)
    given = []
    plain = apart._upload
    monkeypatch.setattr(apart, "_upload", lambda t, source: given.append(source.nbytes) or plain(t, source))
    x, source = torch.zeros(7, N + 1, device="webgpu"), torch.arange(7.0 * (N + 1)).view(7, N + 1)
    assert upload_apart(x, source)
    assert torch.equal(x.cpu(), source)
    assert len(given) == 7
    assert sum(given) == source.nbytes
    assert max(given) <= 2 * SMALLEST_BYTES


def test_memory_is_used_again():
    x = torch.zeros(N, device="webgpu")
    sizes = set()
    for k in range(200):
        assert upload_apart(x, torch.full((N,), float(k)))
        assert x[0].item() == k
        sizes.add(uploads()._size_bytes)
    assert len(sizes) == 1
    torch.webgpu.empty_cache()
    assert uploads()._size_bytes == 0


def test_threads_upload_while_another_one_records():
    tensors = [torch.zeros(4 * N, device="webgpu") for _ in range(4)]
    failures = []

    def work(t):
        try:
            for k in range(50):
                assert upload_apart(t, torch.full((4 * N,), float(k)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in tensors]
    for thread in threads:
        thread.start()
    for k in range(50):
        assert (torch.ones(100, device="webgpu") * k).sum().item() == 100 * k
    for thread in threads:
        thread.join()
    assert not failures
    assert all(t.cpu().eq(49).all() for t in tensors)
    assert not uploads()._used


@pytest.mark.parametrize(
    "target",
    [
        lambda: torch.zeros(N - 1, device="webgpu"),
        lambda: torch.zeros(2 * N, 2, device="webgpu").t()[0],
        lambda: torch.zeros(SMALLEST_BYTES + 4, device="webgpu", dtype=torch.uint8)[1:-2],
    ],
    ids=["small", "strided", "within a word"],
)
def test_what_goes_another_way_is_left_alone(target):
    target = target()
    assert not upload_apart(target, torch.ones(target.shape, dtype=target.dtype))
    assert not target.cpu().any()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_fails_while_bytes_are_copied_leaves_no_block_behind(monkeypatch, error):
    def fail(source):
        raise error

    x = torch.ones(N, device="webgpu")
    assert upload_apart(x, torch.full((N,), 5.0))
    torch.webgpu.synchronize()
    with monkeypatch.context() as patched:
        patched.setattr(apart, "host_bytes", fail)
        with pytest.raises(error):
            upload_apart(x, torch.full((N,), 6.0))
    assert not uploads()._used
    torch.webgpu.empty_cache()
    assert uploads()._size_bytes == 0
    assert upload_apart(x, torch.full((N,), 7.0))
    assert x.cpu().eq(7).all()
