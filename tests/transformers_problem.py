"""Made-up sentences and a small BERT for them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from narl.integrations.transformers import NoiseAwareTrainer

CLASSES = 3


def sentences(count: int, noise: float, seed: int, **more: Any) -> list[dict[str, Any]]:
    """Two words of each sentence tell its class; the labels are wrong as often as asked for."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, size: int = 1) -> Tensor:
        return torch.randint(low, high, (size,), generator=generator)

    found = []
    for number in range(count):
        label = int(draw(0, CLASSES))
        words = draw(10, 40, 8)
        words[:2] = draw(1 + 3 * label, 4 + 3 * label, 2)
        wrong = bool(torch.rand((), generator=generator) < noise)
        given = (label + 1) % CLASSES if wrong else label
        found.append(
            {"input_ids": words.tolist(), "labels": given, **{name: make(number) for name, make in more.items()}}
        )
    return found


NOISY, CLEAN = sentences(24, 0.4, seed=0), sentences(9, 0.0, seed=1)


def bert(dropout: float = 0.1, **changes: Any) -> BertForSequenceClassification:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        num_labels=CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **changes,
    )
    return BertForSequenceClassification(config)


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    plain: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 2e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), **plain | changes)


def trainer_of(folder: Path, model: nn.Module | None = None, how: dict[str, Any] | None = None, **changes: Any) -> Any:
    data: dict[str, Any] = {"train_dataset": NOISY, "clean_dataset": CLEAN, "clean_batch_size": 6}
    return NoiseAwareTrainer(model or bert(), arguments(folder, **changes), **data | (how or {}))


def same(first: nn.Module, second: nn.Module, atol: float = 0.0) -> bool:
    return all(
        torch.allclose(a, b, rtol=0, atol=atol) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def together() -> dict[str, Any]:
    """What one of two processes gets, in DistributedDataParallel, with half of each batch."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(Path(folder), bert(dropout=0.0), {"every": 2}, per_device_train_batch_size=4)
        assert trainer.args.world_size == 2
        trainer.train()
    return {
        "model": {name: value.detach() for name, value in trainer.model.named_parameters()},
        "adjuster": {name: value.detach() for name, value in trainer.adjuster.named_parameters()},
    }
