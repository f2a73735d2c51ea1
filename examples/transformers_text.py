"""Hugging Face Transformers: a text classifier on labels of which 40 % are wrong, with ``NoiseAwareTrainer``.

Sentences are made up and the model is a small BERT without published weights, so that this runs anywhere in seconds.
For data and a model of your own, replace ``sentences`` by your data set and ``bert`` by
``AutoModelForSequenceClassification.from_pretrained(...)``.

    python examples/transformers_text.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from narl import noise
from narl.integrations.transformers import NoiseAwareTrainer

CLASSES = 4


def sentences(count: int, noise_rate: float, seed: int) -> list[dict[str, Any]]:
    """Sentences of twelve words, three of which tell the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    words = torch.randint(50, 100, (count, 12), generator=generator)
    words[:, :3] = torch.randint(0, 8, (count, 3), generator=generator) + 8 * labels.unsqueeze(1) + 1
    given = noise.pair(labels, noise_rate, CLASSES, seed=seed)
    return [{"input_ids": row, "labels": label} for row, label in zip(words.tolist(), given.tolist(), strict=True)]


def bert() -> BertForSequenceClassification:
    """A BERT of two layers, its weights drawn anew."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=CLASSES, **sizes))


def accuracy(prediction: Any) -> dict[str, float]:
    """What is reported of an evaluation."""
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main(epochs: int = 8, samples: int = 800) -> dict[str, float]:
    """Train twice, and tell how often the two are right on clean sentences."""
    noisy, clean, test = sentences(samples, 0.4, seed=0), sentences(60, 0.0, seed=1), sentences(400, 0.0, seed=2)
    found = {}
    for name in ("cross entropy", "noise-aware"):
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder,
                num_train_epochs=epochs,
                per_device_train_batch_size=32,
                learning_rate=2e-3,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            data: dict[str, Any] = {"train_dataset": noisy, "eval_dataset": test, "compute_metrics": accuracy}
            if name == "noise-aware":
                trainer = NoiseAwareTrainer(bert(), args, clean_dataset=clean, every=4, **data)  # the line that is new
            else:
                trainer = Trainer(bert(), args, **data)
            trainer.train()
            found[name] = trainer.evaluate()["eval_accuracy"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    for method, share in main(parser.parse_args().epochs).items():
        print(f"{method}: {100 * share:.1f} % of the test sentences are right")
