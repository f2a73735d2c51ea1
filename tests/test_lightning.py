"""narl in Lightning: automatic and manual optimisation, checkpoints, Fabric and accelerate, two processes."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_problem as problem
import narl
from documented import blocks, example
from lightning_problem import Module, fitted, fresh, noise_of, plain_loop
from narl import errors
from narl.integrations.clean_batches import CleanBatches
from narl.integrations.wrapped import meta_step

# Lightning says things about itself and the machine.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::narl.NarlWarning")]


def same(first: nn.Module, second: nn.Module, atol: float = 0.0) -> bool:
    return all(
        torch.allclose(a, b, rtol=0, atol=atol) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize("manual", [False, True])
def test_it_does_what_a_plain_loop_with_meta_step_does(manual: bool) -> None:
    noise, module = noise_of(every=2), Module(manual=manual)
    trainer = fitted(module, noise)
    expected, adjuster = plain_loop(clip=None if manual else problem.CLIP)
    assert trainer.global_step == 8
    assert same(module.model, expected)
    assert same(noise.adjuster, adjuster)
    assert {"q", "margin", "meta_loss"} <= set(trainer.logged_metrics)


def test_resumed_is_uninterrupted(tmp_path: Path) -> None:
    whole, noise = Module(), noise_of(every=3)
    fitted(whole, noise, max_epochs=2, folder=tmp_path)
    (checkpoint,) = tmp_path.glob("**/*epoch=0*.ckpt")
    resumed, other = Module(), noise_of(every=3)
    fitted(resumed, other, max_epochs=2, ckpt_path=checkpoint)
    assert same(whole.model, resumed.model)
    assert same(noise.adjuster, other.adjuster)
    without = noise_of(clean=None, adjuster=narl.Adjuster("gce", [5, 5]))
    with pytest.raises(errors.OptionError, match="the clean set or the adjuster it was begun with"):
        fitted(Module(), without, max_epochs=2, ckpt_path=checkpoint)


def test_drop_in_loss() -> None:
    snapshots = []
    for number, value in enumerate((-3.0, 3.0)):
        adjuster = narl.Adjuster("gce", [5, 5])
        nn.init.constant_(adjuster.heads.bias, value)
        adjuster.taken = number / 2
        snapshots.append(adjuster)
    noise, module = noise_of(clean=None, adjuster=snapshots), Module()
    trainer = fitted(module, noise, accumulate_grad_batches=2)
    assert 0 < trainer.logged_metrics["suspicion"] < 1
    assert trainer.logged_metrics["q"] > 0.9
    x, y, _, _ = problem.data()
    module.eval()
    with torch.no_grad():
        assert torch.equal(noise.loss(module, x, y), F.cross_entropy(module(x), y))


@pytest.mark.parametrize("data", [None, "table"])
def test_what_is_shipped(data: str | None) -> None:
    noise = noise_of(clean=None, adjuster="sl", data=data)
    assert noise.criterion is not None
    assert noise.criterion.at(0.0).data == data
    running = noise.criterion.at(0.0).running
    assert running is not None
    assert running.seen is not None
    for _ in range(2):  # the second time it is a new training
        trainer = fitted(Module(), noise)
        assert 0 < trainer.logged_metrics["gamma1"] <= 1
        assert int(running.seen) == len(problem.data()[0]), "one epoch"


def test_learning_begins_with_what_is_shipped_for_the_data() -> None:
    assert noise_of(adjuster="polysoft", data="table").adjuster.robust_loss.name == "polysoft"
    assert noise_of(adjuster="sl", data="table").adjuster.num_families == 1
    assert noise_of(adjuster="sl").adjuster.num_families == 3
    with pytest.raises(errors.OptionError, match="data = 'tables' is no kind of data"):
        noise_of(adjuster="sl", data="tables")
    with pytest.raises(errors.OptionError, match="none is given: leave it out"):
        noise_of(data="table")


def test_half_precision() -> None:
    noise, module = noise_of(every=2), Module()
    fitted(module, noise, precision="bf16-mixed")
    expected, _ = plain_loop(clip=problem.CLIP)
    assert not same(module.model, expected)
    assert same(module.model, expected, atol=0.1)


def test_what_cannot_be_learned_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, clean_x, clean_y = problem.data()
    cases: dict[str, dict[str, Any]] = {
        "accumulate_grad_batches = 2": {"accumulate_grad_batches": 2},
        "'value' is not known": {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
    }
    for words, changes in cases.items():
        with pytest.raises(errors.OptionError, match=words):
            fitted(Module(), noise_of(), **changes)
    with pytest.raises(errors.OptionError, match="there are 2 optimisers"):
        fitted(_TwoOptimizers(manual=True), noise_of())
    module = Module()
    module.noise = noise_of()
    with pytest.raises(errors.OptionError, match="no Trainer knows"):
        module.noise.loss(module, x, y)
    with pytest.raises(errors.OptionError, match="neither clean samples"):
        noise_of(clean=None)
    with pytest.raises(errors.CleanBatchError, match="no sample of class 2"):
        noise_of(clean=(clean_x[clean_y < 2], clean_y[clean_y < 2]))
    with pytest.raises(errors.CleanBatchError, match=r"its \.dataset"):
        noise_of(clean=DataLoader(TensorDataset(clean_x, clean_y)))
    trainer = problem.trainer_of()
    monkeypatch.setattr(type(trainer.precision_plugin), "scaler", object(), raising=False)
    monkeypatch.setattr(type(trainer), "precision", "16-mixed")
    trainer.callbacks.append(module.noise)
    with pytest.raises(errors.OptionError, match="16-mixed"):
        trainer.fit(module, problem.loader())


class _TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model[0].parameters(), lr=0.1), torch.optim.SGD(self.model[2].parameters(), lr=0.1)


@pytest.mark.parametrize("library", ["fabric", "accelerate"])
def test_models_and_optimisers_as_other_libraries_wrap_them(library: str) -> None:
    model, optimizer = fresh()
    if library == "fabric":
        from lightning.fabric import Fabric

        wrapped, wrapped_optimizer = Fabric(accelerator="cpu", devices=1).setup(model, optimizer)
    else:
        from accelerate import Accelerator

        wrapped, wrapped_optimizer = Accelerator(cpu=True).prepare(model, optimizer)
    adjuster = problem.adjuster()
    outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
    meta = meta_step(wrapped, wrapped_optimizer, adjuster, every=2, adjuster_optimizer=outer, clip=problem.CLIP)
    x, y, clean_x, clean_y = problem.data()
    clean = CleanBatches(TensorDataset(clean_x, clean_y), 6, problem.stacked, 0)
    for start in range(0, len(x), 8):
        meta.step(x[start : start + 8], y[start : start + 8], clean.next)
    expected, learned = plain_loop(clip=problem.CLIP)
    assert same(model, expected)
    assert same(adjuster, learned)


def test_wrappers_that_divide_or_scale() -> None:
    class FullyShardedDataParallel(nn.Linear):
        pass

    sharded = FullyShardedDataParallel(4, 3)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    with pytest.raises(errors.OptionError, match="divides the weights"):
        meta_step(sharded, optimizer, problem.adjuster())
    model, scaled = fresh()
    scaled.scaler = object()  # type: ignore[attr-defined]
    with pytest.raises(errors.OptionError, match="bfloat16"):
        meta_step(model, scaled, problem.adjuster())


def test_the_page_and_the_example_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

    monkeypatch.chdir(tmp_path)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    names: dict[str, Any] = {"torch": torch, "nn": nn, "narl": narl, "LightningModule": pl.LightningModule}
    names |= {"Trainer": pl.Trainer, "noisy_labels": y, "clean_x": x[:6], "clean_y": y[:6]}
    names["noisy_loader"] = DataLoader(TensorDataset(x, y), batch_size=10)
    first, second, fabric = blocks("lightning.md")
    exec(first, names)
    assert names["noise"].report.meta_loss is not None
    exec(second, names)
    assert names["noise"].adjuster.class_counts == [20, 30, 50]
    names |= {"fabric": Fabric(accelerator="cpu", devices=1), "model": nn.Linear(4, 3)}
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    exec(fabric, names)
    assert names["meta"].steps == 3
    found = example("lightning_images").main(epochs=1)
    assert set(found) == {"cross entropy", "noise-aware"}


def test_examples_in_the_docstrings() -> None:
    from narl.integrations import lightning
    from narl.integrations.lightning import callback

    assert lightning.__all__ == ["NoiseAwareCallback"]
    outcome = doctest.testmod(callback, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_without_the_package() -> None:
    check = (
        "import sys, narl, narl.integrations; sys.modules['lightning.pytorch'] = sys.modules['lightning'] = None\n"
        "try:\n    import narl.integrations.lightning\nexcept narl.NarlError as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", check], text=True)
    assert "pip install 'narl[lightning]'" in said
