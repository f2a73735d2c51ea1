"""narl in Transformers: a small BERT on made-up sentences, against a plain loop, resumed, accumulated, refused."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import narl
from documented import blocks, example
from narl import errors
from narl.integrations import transformers as integration
from narl.integrations.clean_batches import CleanBatches
from narl.integrations.transformers import AdjustedLossCallback, NoiseAwareTrainer
from narl.integrations.transformers import callback as callback_module
from narl.integrations.transformers import trainer as trainer_module
from narl.integrations.transformers.logits import Logits
from narl.integrations.transformers.refusals import refuse_learning
from transformers_problem import CLEAN, NOISY, arguments, bert, same, sentences, trainer_of


def logged(trainer: Any, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


def test_it_does_what_a_plain_loop_with_meta_step_does(tmp_path: Path) -> None:
    """AdamW, a schedule, clipped gradients, dropout."""
    trainer = trainer_of(tmp_path, how={"every": 2}, max_grad_norm=0.1, max_steps=3)
    order: list[list[dict[str, Any]]] = []
    collate = trainer.data_collator

    def watched(rows: list[dict[str, Any]]) -> Any:
        order.append(rows)
        return collate(rows)

    trainer.data_collator = watched
    random: list[Tensor] = []
    trainer.add_callback(_Random(random))
    trainer.train()
    noisy = [rows for rows in order if rows[0] in NOISY]

    model = bert()
    adjuster = narl.Adjuster(
        "gce",
        torch.bincount(torch.tensor([row["labels"] for row in NOISY])),
        generator=torch.Generator().manual_seed(trainer.args.seed),
    )
    reference = Trainer(model, arguments(tmp_path, max_grad_norm=0.1), train_dataset=NOISY)
    optimizer = reference.create_optimizer()
    scheduler = reference.create_scheduler(3)
    outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
    meta = narl.MetaStep(Logits(model), optimizer, adjuster, every=2, adjuster_optimizer=outer, clip=0.1)
    clean = CleanBatches(CLEAN, 6, default_data_collator, trainer.args.seed)
    torch.set_rng_state(random[0])
    model.train()

    def draw() -> tuple[Any, Tensor]:
        batch = clean.next()
        labels = batch.pop("labels")
        return (batch,), labels

    losses = []
    for rows in noisy:
        batch = default_data_collator(rows)
        labels = batch.pop("labels")
        share = optimizer.param_groups[0]["lr"] / 2e-3
        outer.param_groups[0].update(lr=1e-2 * share, weight_decay=1e-4 * share)
        losses.append(float(meta.step((batch,), labels, draw).loss))
        scheduler.step()
    assert same(trainer.model, model, atol=1e-7)  # the norm of a gradient is summed in another order
    assert same(trainer.adjuster, adjuster, atol=1e-7)
    assert not same(adjuster, narl.Adjuster("gce", [9, 9, 9], generator=torch.Generator().manual_seed(42)))
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-4)
    assert len(logged(trainer, "margin")) == len(logged(trainer, "q")) == len(logged(trainer, "meta_loss")) == 3


class _Random(TrainerCallback):
    """Takes down the random state before every step."""

    def __init__(self, found: list[Tensor]) -> None:
        self.found = found

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.found.append(torch.get_rng_state())


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    how = {"every": 2}
    whole = trainer_of(tmp_path / "a", bert(dropout=0.0), how)
    parts = trainer_of(
        tmp_path / "b", bert(dropout=0.0), how, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    whole.train()
    parts.train()
    assert same(whole.model, parts.model, atol=2e-5)
    assert same(whole.adjuster, parts.adjuster, atol=2e-5)
    assert logged(parts, "loss") == pytest.approx(logged(whole, "loss"), abs=1e-5)
    assert logged(parts, "meta_loss") == pytest.approx(logged(whole, "meta_loss"), abs=1e-5)


def test_resumed_is_uninterrupted(tmp_path: Path) -> None:
    numbered = sentences(24, 0.4, seed=0, ids=lambda number: number)
    how = {"every": 2, "margin": "running", "train_dataset": numbered}
    changes: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": 3,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 5,
    }
    whole = trainer_of(tmp_path, how=how, **changes)
    whole.train()
    checkpoint = tmp_path / "checkpoint-3"
    resumed = trainer_of(tmp_path, how=how, **changes)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert same(whole.model, resumed.model)
    assert same(whole.adjuster, resumed.adjuster)
    table = whole.adjuster.running.table
    assert torch.equal(table.nan_to_num(), resumed.adjuster.running.table.nan_to_num())
    assert int((~table.isnan()).sum()) == len(NOISY)
    assert narl.Adjuster.load(checkpoint / "adjuster.safetensors").class_counts == whole.adjuster.class_counts
    (checkpoint / "narl.pt").unlink()
    with pytest.raises(errors.CheckpointError, match="no checkpoint of a NoiseAwareTrainer"):
        trainer_of(tmp_path, how=how, **changes).train(resume_from_checkpoint=str(checkpoint))


def test_half_precision_and_checkpointed_layers(tmp_path: Path) -> None:
    plain = trainer_of(tmp_path / "a", bert(dropout=0.0), {"every": 2})
    half = trainer_of(tmp_path / "b", bert(dropout=0.0), {"every": 2}, bf16=True)
    checkpointed = trainer_of(tmp_path / "c", bert(dropout=0.0), {"every": 2}, gradient_checkpointing=True)
    for trainer in (plain, half, checkpointed):
        trainer.train()
    assert logged(half, "loss") == pytest.approx(logged(plain, "loss"), abs=0.1)
    assert logged(half, "loss") != logged(plain, "loss")
    assert logged(half, "meta_loss") == pytest.approx(logged(plain, "meta_loss"), abs=0.02)
    assert same(plain.model, checkpointed.model, atol=1e-5)
    assert same(plain.adjuster, checkpointed.adjuster, atol=1e-5)


def test_attention_that_can_be_differentiated_once_only(tmp_path: Path) -> None:
    """Meta steps take torch's own instead; the other steps keep it."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    used: list[bool] = []

    def fused(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        used.append(torch.is_grad_enabled())
        output, _ = sdpa_attention_forward(module, *args, **kwargs)
        return _Once.apply(output), None  # type: ignore[no-untyped-call]

    AttentionInterface.register("fused", fused)
    AttentionMaskInterface.register("fused", sdpa_mask)
    model, reference = bert(dropout=0.0, attn_implementation="fused"), bert(dropout=0.0)
    trainer = trainer_of(tmp_path / "a", model, {"every": 2})
    expected = trainer_of(tmp_path / "b", reference, {"every": 2})
    trainer.train()
    expected.train()
    assert len(used) == 2 * 2  # layers, and steps without look-ahead
    assert model.config._attn_implementation == "fused"
    assert same(model, reference, atol=1e-6)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def learned() -> list[narl.Adjuster]:
    """Two snapshots that believe labels first and doubt them later."""
    found = []
    for number, value in enumerate((-3.0, 3.0)):
        adjuster = narl.Adjuster("gce", [5, 5])
        with torch.no_grad():
            adjuster.heads.bias.fill_(value)
        adjuster.taken = number / 2
        found.append(adjuster)
    return found


def test_drop_in_loss_of_a_plain_trainer(tmp_path: Path) -> None:
    counts = [8, 8, 8]
    loss = AdjustedLossCallback(learned(), counts)
    data: dict[str, Any] = {"train_dataset": NOISY, "eval_dataset": CLEAN}
    plain = Trainer(bert(), arguments(tmp_path), compute_loss_func=loss, callbacks=[loss], **data)
    plain.train()
    q = logged(plain, "q")
    assert q[0] == q[1] < 0.1 < 0.9 < q[2] == q[3]
    assert len(logged(plain, "suspicion")) == len(logged(plain, "margin")) == 4
    own = NoiseAwareTrainer(bert(), arguments(tmp_path), adjuster=learned(), class_counts=counts, **data)
    own.train()
    assert same(plain.model, own.model)
    assert logged(own, "q") == q
    with torch.no_grad():
        batch = default_data_collator(CLEAN)
        expected = own.model.eval()(**batch).loss
    assert own.evaluate()["eval_loss"] == pytest.approx(float(expected), abs=1e-6)


def seen_by(trainer: NoiseAwareTrainer) -> int:
    """Samples that a drop-in loss has counted."""
    running = trainer.adjuster.running
    assert running is not None
    assert running.seen is not None
    return int(running.seen)


def test_what_is_shipped_for_texts(tmp_path: Path) -> None:
    trainer = NoiseAwareTrainer(bert(), arguments(tmp_path), train_dataset=NOISY, adjuster="sl", data="text")
    trainer.train()
    assert trainer.adjuster.data == "text"
    assert all(0 < value <= 1 for value in logged(trainer, "gamma1"))
    seen = seen_by(trainer)
    assert seen == trainer.args.per_device_train_batch_size * trainer.state.max_steps, "averages are guessed from it"
    trainer.train()
    assert seen_by(trainer) == seen, "a new training"


def test_samples_seen_before_a_training_is_resumed_count(tmp_path: Path) -> None:
    seen = []
    for checkpoint in (None, str(tmp_path / "checkpoint-2")):
        how = arguments(tmp_path, save_strategy="steps", save_steps=2)
        trainer = NoiseAwareTrainer(bert(), how, train_dataset=NOISY, adjuster="sl", data="text")
        trainer.train(resume_from_checkpoint=checkpoint)
        seen.append(seen_by(trainer))
    assert seen[0] == seen[1] > 0


def test_drop_in_loss_accumulated_and_resumed(tmp_path: Path) -> None:
    learned()[1].save(file := tmp_path / "gce.safetensors")
    changes: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}

    def trainer(model: nn.Module, **more: Any) -> Any:
        return NoiseAwareTrainer(model, arguments(tmp_path, **changes | more), train_dataset=NOISY, adjuster=file)

    whole, parts = trainer(bert(0.0)), trainer(bert(0.0), per_device_train_batch_size=2, gradient_accumulation_steps=4)
    whole.train()
    parts.train()
    assert same(whole.model, parts.model, atol=1e-5)
    resumed = trainer(bert(0.0), per_device_train_batch_size=2, gradient_accumulation_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(parts.model, resumed.model)


def test_what_cannot_be_learned_is_said(tmp_path: Path) -> None:
    cases: dict[str, tuple[type[Exception], dict[str, Any], dict[str, Any]]] = {
        "fp16 scales the loss": (errors.OptionError, {}, {"fp16": True}),
        "label_smoothing_factor = 0.1": (errors.OptionError, {}, {"label_smoothing_factor": 0.1}),
        "compute_loss_func is the loss": (errors.OptionError, {"compute_loss_func": print}, {}),
        "neither clean samples": (errors.OptionError, {"clean_dataset": None}, {}),
        "clean_dataset is train_dataset": (errors.CleanBatchError, {"clean_dataset": NOISY}, {}),
        "no sample of class 2": (errors.CleanBatchError, {"clean_dataset": [r for r in CLEAN if r["labels"] < 2]}, {}),
        "the clean set is empty|no sample of class": (errors.CleanBatchError, {"clean_dataset": []}, {}),
        "reentrant": (
            errors.OptionError,
            {},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        ),
        "labels from 1 to 3": (
            errors.LabelError,
            {"train_dataset": [{**row, "labels": row["labels"] + 1} for row in NOISY]},
            {},
        ),
        "has no length": (errors.LabelError, {"train_dataset": _Stream()}, {}),
        "no labels, only input_ids": (
            errors.LabelError,
            {"train_dataset": [{"input_ids": row["input_ids"]} for row in NOISY]},
            {},
        ),
    }
    for words, (kind, how, changes) in cases.items():
        if "fp16" in changes:
            with pytest.raises(kind, match=words):
                refuse_learning(_as_if(arguments(tmp_path), fp16=True))
            continue
        with pytest.raises(kind, match=words):
            trainer_of(tmp_path, how=how, **changes)
    for problem in ("multi_label_classification", "regression"):
        with pytest.raises(errors.OptionError, match=problem):
            trainer_of(tmp_path, bert(problem_type=problem))
    with pytest.raises(errors.OptimizerError, match="virtual='sgd'"):
        trainer_of(tmp_path, optim="rmsprop").train()
    with pytest.raises(errors.SampleIdsError, match="running"):
        trainer_of(tmp_path, how={"margin": "running"}).train()
    for attribute, words in {"is_deepspeed_enabled": "DeepSpeed", "is_fsdp_enabled": "FSDP"}.items():
        with pytest.raises(errors.OptionError, match=words):
            refuse_learning(SimpleNamespace(**{**vars(_as_if(arguments(tmp_path))), attribute: True}))
    with pytest.raises(errors.OptionError, match="torchrun"):
        refuse_learning(_as_if(arguments(tmp_path), n_gpu=2))


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(NOISY)


def _as_if(args: TrainingArguments, **changes: Any) -> SimpleNamespace:
    """A trainer with other arguments, which this machine may not have."""
    names = ("n_gpu", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs", "parallelism_config")
    values = {name: getattr(args, name, None) for name in names} | changes
    return SimpleNamespace(args=SimpleNamespace(**values), is_deepspeed_enabled=False, is_fsdp_enabled=False)


def test_columns_as_hugging_face_has_them(tmp_path: Path) -> None:
    class Columns:
        column_names = ("input_ids", "label")

        def __len__(self) -> int:
            return len(NOISY)

        def __getitem__(self, place: int | str) -> Any:
            if isinstance(place, str):
                return [row["labels"] for row in NOISY]
            return {"input_ids": NOISY[place]["input_ids"], "label": NOISY[place]["labels"]}

    trainer = trainer_of(tmp_path, how={"train_dataset": Columns()}, max_steps=1)
    trainer.train()
    assert trainer.adjuster.class_counts == torch.bincount(torch.tensor([r["labels"] for r in NOISY])).tolist()


def test_the_page_and_the_example_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"args": arguments(tmp_path, max_steps=1), "noisy": NOISY, "clean": CLEAN}
    names |= {"Trainer": Trainer, "model": bert()}
    first, *others = blocks("transformers.md")
    exec(first, names)
    names["trainer"].save_model(tmp_path)
    assert names["trainer"].report.meta_loss is not None
    for block in others:
        exec(block, names)
        assert "suspicion" in names["trainer"].state.log_history[0]
    found = example("transformers_text").main(epochs=1, samples=64)
    assert set(found) == {"cross entropy", "noise-aware"}


def test_examples_in_the_docstrings() -> None:
    assert set(integration.__all__) == {"AdjustedLossCallback", "NoiseAwareTrainer"}
    for module in (callback_module, trainer_module):
        outcome = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        assert outcome.attempted > 0
        assert outcome.failed == 0


def test_without_the_package() -> None:
    check = (
        "import sys, narl, narl.integrations; sys.modules['transformers'] = None\n"
        "try:\n    import narl.integrations.transformers\nexcept narl.NarlError as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", check], text=True)
    assert "pip install 'narl[transformers]'" in said
