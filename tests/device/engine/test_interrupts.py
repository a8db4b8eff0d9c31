"""Signals whose handlers raise, or use the device, at any moment: nothing hangs, is lost or wrong afterwards."""

from __future__ import annotations

import os

from tests.device.processes import assert_ends_well

SECONDS = os.environ.get("TORCH_WEBGPU_TEST_INTERRUPT_SECONDS", "6")
"""How long signals arrive in each of the two long tests. Set it to look for rarer faults."""

STRESS = """
    import faulthandler, gc, io, random, signal
    faulthandler.dump_traceback_later(110, exit=True)
    torch.manual_seed(0)
    device = "webgpu"
    SECONDS = float(os.environ["SECONDS"])

    class Interrupt(BaseException):
        pass

    on_cpu = torch.arange(1000.0)
    x = on_cpu.to(device)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    net.to(device)
    rows = torch.randn(5, 8)
    on_device = rows.to(device)
    counter = torch.zeros(3, device=device)
    params = list(net.parameters())

    def read(k):
        assert (x[:10] * 2 + k).sum().item() == 90 + 10 * k

    def upload(k):
        t = torch.full((64,), float(k)).to(device)
        assert (t + 1).tolist() == [k + 1.0] * 64

    def flush(k):
        y = x + k
        torch.webgpu.flush_batch()
        z = y * 2
        torch.webgpu.synchronize()
        assert torch.equal(z.cpu(), (on_cpu + k) * 2)

    def backward(k):
        grads = torch.autograd.grad(net(on_device).sum(), params)
        for g, e in zip(grads, expected):
            torch.testing.assert_close(g.cpu(), e)

    def save(k):
        buffer = io.BytesIO()
        torch.save(net.state_dict(), buffer)
        buffer.seek(0)
        for name, t in torch.load(buffer, map_location="cpu").items():
            assert torch.equal(t, state[name])

    def show(k):
        assert repr(x[:3] + k % 7) == repr((on_cpu[:3] + k % 7)).replace(")", ", device='webgpu:0')")

    def many(k):
        y = x
        for _ in range(100):
            y = y + 1
        assert y[0].item() == 100

    def lists(k):
        ts = torch._foreach_add([x, counter], 1.0)
        assert ts[1].tolist() == [1, 1, 1]

    def event(k):
        e = torch.webgpu.Event()
        y = x * k
        e.record()
        e.synchronize()
        assert y[1].item() == k

    host = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    host.load_state_dict(state)
    expected = torch.autograd.grad(host(rows).sum(), list(host.parameters()))
    works = (read, upload, flush, backward, save, show, many, lists, event)
    for k, work in enumerate(works * 3):
        work(k)
"""

RAISING = """
    arrived = interrupted = 0

    def handler(number, frame):
        global arrived
        arrived += 1
        if armed:
            raise Interrupt

    armed = False
    signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGUSR1, handler)
    end, k = time.monotonic() + SECONDS, 0

    def send():
        for _ in range(100):
            time.sleep(0.011)
            os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=send).start()
    while time.monotonic() < end:
        k += 1
        work = works[k % len(works)]
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.004))
                work(k)
            finally:
                armed = False
        except Interrupt:
            interrupted += 1
            torch.set_grad_enabled(True)  # PyTorch's no_grad() may have been interrupted at its end
        work(k + 1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0.05)
    assert signal.getsignal(signal.SIGALRM) is handler and interrupted, arrived
    for number in range(2):
        for k, work in enumerate(works):
            work(k)
"""

USING = """
    calls, failed, busy = 0, [], False

    def handler(number, frame):
        # What a program does that saves its state when it is told to end.
        global calls, busy
        if busy:
            return
        busy = True
        try:
            calls += 1
            counter.add_(1)
            saving[calls % len(saving)](calls)
        except BaseException as error:
            failed.append(error)
        finally:
            busy = False

    signal.signal(signal.SIGALRM, handler)
    end, k = time.monotonic() + SECONDS, 0

    def lists(k):
        pass  # the counter changes meanwhile

    works = tuple(work for work in works if work.__name__ != "lists")
    # An operation it interrupts has autograd off already.
    saving = tuple(work for work in works if work is not backward)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.007)
    while time.monotonic() < end:
        k += 1
        works[k % len(works)](k)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if failed:
        raise failed[0]
    assert calls
    assert counter.tolist() == [calls] * 3
"""

NO_LEAKS = """
    gc.collect()
    torch.webgpu.synchronize()
    held = {a for a in torch_webgpu.engine.record.engine().mailbox.allocations.values()}
    before = torch.webgpu.memory_allocated()
    assert before == sum(a.size_bytes for a in held), (before, sum(a.size_bytes for a in held))
    wanted = sum(t.untyped_storage().nbytes() for t in (x, on_device, counter, *params))
    assert before <= wanted + 4096, (before, wanted)
    faulthandler.cancel_dump_traceback_later()
"""


def test_handlers_that_raise_at_random_moments():
    assert_ends_well(STRESS + RAISING + NO_LEAKS, SECONDS=SECONDS)


def test_handlers_that_use_the_device_at_random_moments():
    assert_ends_well(STRESS + USING + NO_LEAKS, SECONDS=SECONDS)
