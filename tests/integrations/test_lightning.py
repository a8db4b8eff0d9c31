"""Lightning's Trainer and Fabric find the device, cast on it, and their checkpoints resume."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.device.processes import run_script
from tests.integrations.training import Net, batches, data, net, state_of
from torch import nn

from torch_webgpu.integrations import known
from torch_webgpu.integrations.lightning import parse_devices

pytest.importorskip("lightning", reason="about Lightning, which is not installed")

import lightning
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricMixed
from lightning.fabric.utilities import seed
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.seed import isolate_rng

CHOICES = [("auto", "webgpu"), ("gpu", "webgpu"), ("webgpu", "webgpu"), ("cpu", "cpu")]


def plain(module: str, target: str) -> Any:
    """What Lightning has without the patch."""
    [patch] = [p for p in known.patches(f"lightning.{module}") if p.target == target]
    return patch.plain


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = net(dropout)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        assert x.device == self.device
        loss = nn.functional.cross_entropy(self.net(x), y)
        assert loss.device == self.device
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def loader() -> Any:
    return torch.utils.data.DataLoader(data(), batch_size=6)


def trainer(**options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    return Trainer(**quiet | {"enable_checkpointing": "callbacks" in options} | options)


@pytest.mark.parametrize(("asked", "expected"), CHOICES)
def test_it_finds_the_device(asked: str, expected: str) -> None:
    assert trainer(accelerator=asked).strategy.root_device.type == expected
    assert Fabric(accelerator=asked).device.type == expected


def test_the_default_is_auto() -> None:
    assert trainer().strategy.root_device == Fabric().device == torch.device("webgpu", 0)


def test_the_packages_with_the_other_names() -> None:
    pytorch_lightning = pytest.importorskip("pytorch_lightning", reason="about a package that is not installed")
    lightning_fabric = pytest.importorskip("lightning_fabric", reason="about a package that is not installed")
    options = {"accelerator": "webgpu", "precision": "bf16-mixed"}
    made = pytorch_lightning.Trainer(logger=False, enable_checkpointing=False, **options)
    assert (made.strategy.root_device.type, made.precision_plugin.device) == ("webgpu", "webgpu")
    fabric = lightning_fabric.Fabric(**options)
    assert (fabric.device.type, fabric._precision.device) == ("webgpu", "webgpu")


def test_an_accelerator_of_ones_own() -> None:
    accelerator = lightning.pytorch.accelerators.AcceleratorRegistry.get("webgpu")
    made = trainer(accelerator=accelerator, precision="bf16-mixed")
    assert (made.strategy.root_device.type, made.precision_plugin.device) == ("webgpu", "webgpu")
    assert accelerator.get_device_stats("webgpu:0")["active_bytes"] >= 0


def test_devices() -> None:
    assert parse_devices(1) == parse_devices("1") == parse_devices([0]) == parse_devices("0,") == [0]
    assert trainer(accelerator="webgpu", devices=[0]).strategy.root_device == torch.device("webgpu", 0)
    count = torch.webgpu.device_count()
    assert parse_devices(-1) == list(range(count))
    for devices in ([count], count + 1):
        with pytest.raises(ValueError, match="there are"):
            parse_devices(devices)
    for devices in ([], [0, 0]):
        with pytest.raises(ValueError, match="name adapters once each"):
            parse_devices(devices)


def test_several_devices() -> None:
    """Nothing is launched yet: what the arguments become."""
    script = """
    import pickle
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer
    for name, strategy in (("auto", "DDPStrategy"), ("ddp", "DDPStrategy"), ("fsdp", "FSDPStrategy")):
        for accelerator in ("webgpu", "gpu"):
            options = {"accelerator": accelerator, "devices": 2, "strategy": name}
            made = Trainer(**options, logger=False, enable_checkpointing=False).strategy
            fabrics = Fabric(**options).strategy
            for one in (made, fabrics):
                assert type(one).__name__ == strategy, (type(one), name)
                assert one.parallel_devices == [torch.device("webgpu", n) for n in (0, 1)]
    assert Trainer(logger=False, enable_checkpointing=False).num_devices == 2, "all adapters like the first"
    assert type(Fabric(devices=2, strategy="fsdp", precision="16-mixed")._precision).__name__ == "FSDPPrecision"
    accelerator = pickle.loads(pickle.dumps(made.accelerator))
    assert type(accelerator) is type(made.accelerator)
    """
    done = run_script(script, TORCH_WEBGPU_COPIES="2")
    assert done.returncode == 0, done.stderr


def test_training_equals_the_cpu() -> None:
    ours, cpu = Module(), Module()
    trainer(gradient_clip_val=1.0).fit(ours, loader())
    trainer(gradient_clip_val=1.0, accelerator="cpu").fit(cpu, loader())
    assert {device for device, _ in ours.net.seen} == {"webgpu"}
    assert {device for device, _ in cpu.net.seen} == {"cpu"}
    torch.testing.assert_close(ours.losses, cpu.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state_of(ours), state_of(cpu), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("precision", "dtype"), [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16)])
def test_mixed_precision_casts(precision: str, dtype: torch.dtype, recwarn: pytest.WarningsRecorder) -> None:
    ours, full = Module(), Module()
    made = trainer(precision=precision)
    made.fit(ours, loader())
    assert set(ours.net.seen) == {("webgpu", dtype)}
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    if precision == "16-mixed":
        assert made.precision_plugin.scaler.is_enabled()
        assert made.precision_plugin.scaler._scale.device.type == "webgpu"
    assert not [str(w.message) for w in recwarn if "CUDA" in str(w.message)]
    trainer(accelerator="cpu").fit(full, loader())
    torch.testing.assert_close(ours.losses, full.losses, rtol=5e-2, atol=5e-2)


def test_precision_of_ones_own_stays() -> None:
    own, fabrics = MixedPrecision("bf16-mixed", "cpu"), FabricMixed("bf16-mixed", "cpu")
    assert trainer(plugins=own).precision_plugin is own
    assert Fabric(plugins=fabrics)._precision is fabrics
    assert type(trainer(precision="bf16-true").precision_plugin).__name__ == "HalfPrecision"


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_checkpoint_resumes(precision: str, tmp_path: Path) -> None:
    whole, again = Module(), Module()
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer(max_epochs=2, precision=precision, callbacks=[keep]).fit(whole, loader())
    resumed = trainer(max_epochs=2, precision=precision)
    resumed.fit(again, loader(), ckpt_path=tmp_path / "epoch=0.ckpt", weights_only=False)
    assert again.losses == whole.losses[4:]
    torch.testing.assert_close(state_of(again), state_of(whole), rtol=0, atol=0)


def test_random_states_are_isolated() -> None:
    torch.manual_seed(3)
    want = torch.rand(4, device="webgpu").tolist()
    torch.manual_seed(3)
    with isolate_rng():
        torch.rand(7, device="webgpu").tolist()
    assert torch.rand(4, device="webgpu").tolist() == want
    assert seed.seed_everything(5) == 5
    want = torch.rand(4, device="webgpu").tolist()
    seed.seed_everything(5)
    assert torch.rand(4, device="webgpu").tolist() == want


# Fabric ---------------------------------------------------------------------------------------------------------------


def fabric_losses(fabric: Any, model: Net, steps: slice = slice(None), optimizer: Any = None) -> list[float]:
    wrapped, optimizer = optimizer or fabric.setup(model, torch.optim.AdamW(model.parameters(), 1e-2))
    losses = []
    for x, y in batches()[steps]:
        loss = nn.functional.cross_entropy(wrapped(fabric.to_device(x)), fabric.to_device(y))
        assert loss.device == fabric.device
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_fabric_trains_as_the_cpu(precision: str) -> None:
    model, cpu = net(), net()
    losses = fabric_losses(Fabric(precision=precision), model)
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision, torch.float32)
    assert set(model.seen) == {("webgpu", dtype)}
    tolerance = 1e-4 if precision == "32-true" else 5e-2
    torch.testing.assert_close(losses, fabric_losses(Fabric(accelerator="cpu"), cpu), rtol=tolerance, atol=tolerance)
    assert set(cpu.seen) == {("cpu", torch.float32)}


def test_fabric_resumes(tmp_path: Path) -> None:
    fabric, model = Fabric(), net()
    both = fabric.setup(model, torch.optim.AdamW(model.parameters(), 1e-2))
    fabric_losses(fabric, model, slice(0, 2), both)
    fabric.save(tmp_path / "half.ckpt", {"model": both[0], "optimizer": both[1]})
    want = fabric_losses(fabric, model, slice(2, 4), both)
    model = net()
    both = fabric.setup(model, torch.optim.AdamW(model.parameters(), 1e-2))
    fabric.load(tmp_path / "half.ckpt", {"model": both[0], "optimizer": both[1]})
    assert fabric_losses(fabric, model, slice(2, 4), both) == want


# Canaries: when one of these fails, Lightning does by itself what the patch is for, and the patch can go. -------------

CONNECTORS = ["fabric.connector._Connector", "pytorch.trainer.connectors.accelerator_connector._AcceleratorConnector"]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_choices_still_need_it(connector: str) -> None:
    module, _, owner = connector.rpartition(".")
    assert plain(module, f"{owner}._choose_auto_accelerator").__func__() == "cpu"
    with pytest.raises(Exception, match="No supported gpu backend found"):
        plain(module, f"{owner}._choose_gpu_accelerator_backend").__func__()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_strategy_and_precision_still_need_it(connector: str) -> None:
    module, _, owner = connector.rpartition(".")
    made = trainer(precision="bf16-mixed")._accelerator_connector if "pytorch" in module else None
    made = made or Fabric(precision="bf16-mixed")._connector
    assert plain(module, f"{owner}._choose_strategy")(made).root_device.type == "cpu"
    assert plain(module, f"{owner}._check_and_init_precision")(made).device == "cuda"


def test_ranks_still_need_it() -> None:
    here = SimpleNamespace(root_device=torch.device("webgpu", 0))
    ids = "determine_ddp_device_ids"
    assert plain("pytorch.strategies.ddp", f"DDPStrategy.{ids}")(here) == [0]
    assert plain("fabric.strategies.ddp", f"DDPStrategy._{ids}")(here) == [0]
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match=r"CUDA|Torch not compiled"):
            torch.cuda.stream(torch.cuda.Stream())
    plain("pytorch.strategies.ddp", "DDPStrategy._register_ddp_hooks")(here)  # it registers none, and asks no more
    for half in ("fabric", "pytorch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CUDA is not there
            context = plain(f"{half}.plugins.precision.fsdp", "FSDPPrecision.forward_context")(
                SimpleNamespace(precision="bf16-mixed", _desired_input_dtype=torch.bfloat16)
            )
        assert context.device == "cuda"
        environment = plain(f"{half}.strategies.fsdp", "FSDPStrategy.setup_environment")
        assert 'init_device_mesh("cuda"' in inspect.getsource(environment)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_sharding_still_needs_it(connector: str) -> None:
    module, _, owner = connector.rpartition(".")
    made = trainer()._accelerator_connector if "pytorch" in module else Fabric()._connector
    made._strategy_flag = "fsdp"
    with pytest.raises(ValueError, match="GPU"):
        plain(module, f"{owner}._check_strategy_and_fallback")(made)


def test_random_states_still_need_it() -> None:
    assert "torch.webgpu" not in plain("fabric.utilities.seed", "_collect_rng_states")()
    assert len(torch.webgpu.get_rng_state_all()) == torch.webgpu.device_count()


def test_the_log_still_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    made = trainer()
    caplog.clear()
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        plain("pytorch.trainer.setup", "_log_device_info")(made)
        assert "WebGPU" not in caplog.text
        trainer()
    assert "WebGPU available: True, used: True" in caplog.text
