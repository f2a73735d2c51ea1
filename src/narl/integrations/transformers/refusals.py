"""What a trainer that learns its loss cannot do, said before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from narl.errors import OptionError


def refuse_arguments(args: Any, others: Mapping[str, Any]) -> None:
    """Refuse what would be ignored in silence."""
    if others.get("compute_loss_func") is not None:
        raise OptionError("compute_loss_func is the loss, which NoiseAwareTrainer brings: give one of the two")
    if getattr(args, "label_smoothing_factor", 0):
        raise OptionError(
            f"label_smoothing_factor = {args.label_smoothing_factor}: adjusted losses have hyperparameters of their "
            "own for labels that are not sure; leave it at 0"
        )


def refuse_model(model: nn.Module) -> None:
    """Refuse models that are no classifiers with one label a sample."""
    config = getattr(model, "config", None)
    problem, classes = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
    if problem not in (None, "single_label_classification"):
        raise OptionError(
            f"{type(model).__name__} has problem_type {problem!r}: robust losses are for one class a sample; "
            "set config.problem_type = 'single_label_classification' if that is what the labels are"
        )
    if classes is None or classes < 2:
        raise OptionError(
            f"{type(model).__name__} has {'no num_labels' if classes is None else f'num_labels = {classes}'} in its "
            "config: narl needs a classifier with two classes or more; give a binary one two outputs"
        )


def refuse_learning(trainer: Any) -> None:
    """Refuse the ways to train in which a look-ahead would not be exact, or not possible."""
    args, way_out = trainer.args, "or train without clean_dataset, with an adjuster that was learned before"
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or getattr(args, "parallelism_config", None):
        raise OptionError(
            "DeepSpeed, FSDP and tensor parallelism divide the weights among processes, and the look-ahead needs them "
            f"whole: use torchrun with plain data parallelism, {way_out}"
        )
    if args.n_gpu > 1:
        raise OptionError(
            f"one process with {args.n_gpu} GPUs copies the model in every step (DataParallel), which has no tangent "
            "pass: start one process a GPU with torchrun, or show one GPU with CUDA_VISIBLE_DEVICES"
        )
    if args.fp16:
        raise OptionError(
            "fp16 scales the loss and skips steps, which a look-ahead cannot know: use bf16=True, or float32, "
            f"{way_out}"
        )
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        raise OptionError(
            "reentrant checkpointing cannot be differentiated twice: use "
            "gradient_checkpointing_kwargs={'use_reentrant': False}"
        )
