"""A run before it begins: everything read, checked and decided, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from narl import losses
from narl.adjuster.pretrained import is_name
from narl.bilevel import Processes
from narl.data import augmentation, encoding
from narl.errors import OptionError
from narl.models.committee import Committee, Networks
from narl.train import architectures, defaults, methods
from narl.train.adjusters import load_adjusters
from narl.train.batches import steps_per_epoch
from narl.train.checked import auto_share
from narl.train.defaults import Recipe
from narl.train.environment import threads, usable_device
from narl.train.own_models import global_state_from
from narl.train.prepare import Sets, prepare
from narl.train.schedule import Schedule
from narl.train.settings import Settings

Draw = Callable[[], tuple[Tensor, Tensor]]


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """A run that could begin: everything read, checked and decided, nothing written yet.

    Args:
        settings: what was asked for.
        recipe: what was decided.
        sets: training, clean, held-out and test samples.
        encoder: from samples to tensors.
        parameters: how many numbers the model has; averages of its networks are not counted.

    Example: see :func:`plan`.
    """

    settings: Settings
    recipe: Recipe
    sets: Sets
    encoder: encoding.Encoder
    parameters: int

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return steps_per_epoch(len(self.sets.train), self.recipe.batch_size)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.steps * self.recipe.epochs

    @property
    def trusted(self) -> Tensor | None:
        """Which training samples are checked ones that have a share of every batch; None: none, or all."""
        if self.recipe.clean_share is None:
            return None
        checked = torch.ones(len(self.sets.train), dtype=torch.bool)
        checked[torch.as_tensor(self.sets.unchecked)] = False
        return checked if bool(checked.any()) and not bool(checked.all()) else None

    @property
    def networks(self) -> Networks:
        """How many the method trains."""
        return methods.get(self.recipe.method).networks_for(self.settings.options)

    def model(self) -> nn.Module:
        """A new model, the same each time."""
        model = architectures.build(
            self.settings.model,
            kind=self.sets.train.kind,
            shape=self.encoder.shape,
            num_classes=len(self.sets.train.classes),
            generator=torch.Generator().manual_seed(self.settings.seed),
            networks=self.networks,
        )
        model = model.to(self.recipe.device)
        images_on_gpu = self.sets.train.kind == "image" and self.recipe.device.startswith("cuda")
        # GPUs' convolutions want a pixel's channels side by side.
        return model.to(memory_format=torch.channels_last) if images_on_gpu else model  # type: ignore[call-overload]

    @property
    def schedule(self) -> Schedule:
        """Of the learning rate."""
        milestones = [round(epoch * self.steps) for epoch in self.settings.milestones]
        return Schedule(self.recipe.schedule, self.total_steps, round(self.settings.warmup * self.steps), milestones)

    def describe(self) -> dict[str, Any]:
        """What the run will do, as plain values: the heart of its ``config.json``."""
        sets = self.sets
        sizes = {"train": sets.train, "clean": sets.clean, "heldout": sets.heldout, "test": sets.test, **sets.also}
        checked = {"checked": len(sets.train) - len(sets.unchecked)} if sets.checked else {}
        return {
            "settings": self.settings.to_json(),
            "recipe": asdict(self.recipe),
            "kind": sets.train.kind,
            "classes": list(sets.train.classes),
            "class_counts": sets.train.class_counts.tolist(),
            "samples": {name: 0 if samples is None else len(samples) for name, samples in sizes.items()} | checked,
            "unjudged": sets.unjudged,
            "columns": replace(self.settings, columns=sets.columns).to_json()["columns"],
            "shape": dict(self.encoder.shape),
            "parameters": self.parameters,
            "networks": asdict(self.networks),
            "steps_per_epoch": self.steps,
            "fingerprint": sets.fingerprint(),
            "notes": list(sets.notes),
        }


def plan(settings: Settings, recipe: Recipe | None = None) -> Plan:
    """Read the data, decide what is open, build the model once: all that can be known before training.

    Args:
        settings: what is asked for.
        recipe: what was decided before, for a run that is resumed.

    Returns:
        What would happen.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/table.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
        ...     made = plan(Settings(data=f"{folder}/table.npz", clean="8", test="none", device="cpu"))
        >>> made.recipe.method, len(made.sets.train), made.steps
        ('A-GCE', 32, 1)
    """
    asked = _absolute(settings)
    _decided(asked, recipe)  # mistakes are told before the data are read
    sets = prepare(asked, heldout=recipe.heldout if recipe else defaults.heldout_of(asked))
    spec, settings = _decided(asked, recipe, sets.train.kind)
    if not spec.learns_from_clean(settings.options):
        sets = sets.not_learned_from()
    if settings.tune and sets.heldout is None:
        apart = ", and a share of them that is not trained on with --heldout" if settings.train_on_clean else ""
        raise OptionError(f"--tune needs clean samples to validate on: give them with --clean{apart}")
    if settings.patience is not None and sets.heldout is None:
        raise OptionError(
            "--patience needs clean samples that are not learned from: give a clean set with --clean, and a share of "
            "it with --heldout"
        )
    encoder = architectures.encoder_for(
        settings.model, sets.train.inputs, image_size=settings.image_size, text_length=settings.text_length
    )
    new = recipe is None
    if recipe is None:
        recipe = defaults.decide(
            settings,
            kind=sets.train.kind,
            samples=len(sets.train),
            channels=encoder.shape.get("in_channels", 0),
            device=usable_device(settings.device),
            threads=torch.get_num_threads(),
        )
    else:
        usable_device(recipe.device)
    augmentation.get(recipe.augment)
    made = Plan(settings, recipe, sets, encoder, 0)
    made.schedule  # noqa: B018  a warm-up or milestones that do not fit are known before training
    model = made.model()
    with threads(recipe.threads):
        architectures.check_output(model, _example(made), len(sets.train.classes))
    # Once for a trial: options that name files or adjusters are looked at before training.
    trial = method_for(made, model, optimizer_for(made, model), None if sets.clean is None else _never)
    if new and sets.checked:
        made = _with_share(made, trial)
    return replace(made, parameters=_size(model))


def _size(model: nn.Module) -> int:
    """Parameters, those of averages left out."""
    parts = model.members if isinstance(model, Committee) else model
    return sum(parameter.numel() for parameter in parts.parameters())


def _with_share(plan: Plan, method: methods.Method) -> Plan:
    """The plan with the share of every batch that clean samples have, and a note about it."""
    sets, settings = plan.sets, plan.settings
    if not method.trusts or method.chooses_rows:
        if settings.clean_share is None:
            return plan
        raise OptionError(
            f"--clean-share is for losses of each sample and boosted ones, {method.name} is neither: leave it out"
        )
    given = len(sets.unchecked)
    checked = len(sets.train) - given
    if not given:
        return plan
    share = settings.clean_share
    if share is None and sets.train.kind == "image":
        return plan  # a thousand images alone teach little, and how large a share should be was not measured on them
    if share is None:
        share = auto_share(checked, given, len(sets.train.classes), sets.wrong, plan.recipe.epochs)
    known = "" if sets.wrong is None else f"; {sets.wrong:.0%} of them had been given another label"
    note = f"they are {share:.0%} of every batch, with cross entropy as their loss{known}: --clean-share says otherwise"
    return replace(plan, recipe=replace(plan.recipe, clean_share=share), sets=replace(sets, notes=(*sets.notes, note)))


def _decided(asked: Settings, recipe: Recipe | None, kind: str | None = None) -> tuple[methods.MethodSpec, Settings]:
    """The method, and the settings with the adjusters that it uses, both checked."""
    settings = asked if recipe else replace(asked, adjusters=defaults.adjusters_of(asked, kind))
    spec = methods.get(recipe.method if recipe else defaults.method_of(asked, kind))
    _check_method(spec, settings)
    return spec, settings


def _check_method(spec: methods.MethodSpec, settings: Settings) -> None:
    if spec.needs_clean and settings.clean == "none":
        raise OptionError(
            f"{spec.name} learns from samples whose labels are right: give them with --clean (a file, a folder, ids, "
            "or a number of training samples that you vouch for), or use --method GCE"
        )
    if spec.needs_adjuster and not settings.adjusters:
        raise OptionError(
            f"{spec.name} uses a learned adjuster and narl ships none of its loss for such data: name one, or the run "
            f"that learned it, with --adjuster, or have the loss fixed with --method {spec.name[2:].rstrip('+')}"
        )
    if settings.adjusters and not spec.needs_adjuster:
        adjusted = "T-GCE" if spec.loss is None else f"T-{losses.get(spec.loss).title}"
        raise OptionError(
            f"--adjuster is for T-* methods, not for {spec.name}: use --method {adjusted}, or leave it out"
        )
    if "adjusters" in settings.options:
        raise OptionError("adjusters are given with --adjuster, not as an option of the method")
    load_adjusters(settings.adjusters)
    if settings.tune and not spec.grid():
        raise OptionError(
            f"--tune chooses a fixed loss's hyperparameters, {spec.name} has none to choose: name another method, "
            "such as --method GCE"
        )
    if settings.tune and set(settings.options) & set(spec.grid()[0]):
        given = ", ".join(sorted(set(settings.options) & set(spec.grid()[0])))
        raise OptionError(f"--tune chooses {given}, which is also given: leave one of the two out")
    if settings.heldout and settings.clean == "none":
        raise OptionError("--heldout is a share of the clean set: give one with --clean")
    if settings.clean_share is not None and not settings.train_on_clean:
        raise OptionError("--clean-share is about clean samples that are trained on: add --train-on-clean")
    if settings.train_on_clean and settings.clean == "none":
        raise OptionError("--train-on-clean is about the clean set: give one with --clean, or leave it out")
    heldout = None if settings.train_on_clean else settings.heldout
    for flag, value in (("--heldout", heldout), ("--clean-batch-size", settings.clean_batch_size)):
        if value and not spec.learns_from_clean(settings.options):
            who = f"{spec.name} with these options" if spec.uses_clean else spec.name
            raise OptionError(
                f"{flag} is for methods that learn from clean samples; for {who} all of them choose the epoch: "
                "leave it out"
            )
    spec.checked(settings.options)


def method_for(
    plan: Plan,
    model: nn.Module,
    optimizer: Optimizer,
    clean: Draw | None,
    processes: Processes | None = None,
) -> methods.Method:
    """The method at the first step.

    Args:
        plan: what the run will do.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        processes: who trains together; None: this process alone.

    Returns:
        The method, the same each time, also if it draws from torch's global random state.
    """
    setting = methods.Setting(
        model=model,
        optimizer=optimizer,
        class_counts=torch.as_tensor(plan.sets.train.class_counts, device=plan.recipe.device),
        clean=clean,
        total_steps=plan.total_steps,
        num_samples=len(plan.sets.train),
        generator=torch.Generator().manual_seed(plan.settings.seed),
        processes=processes or Processes.alone(),
        labels=torch.as_tensor(plan.sets.train.labels, device=plan.recipe.device),
        batch_size=plan.recipe.batch_size,
        epochs=plan.recipe.epochs,
        kind=plan.sets.train.kind,
        shape=plan.encoder.shape,
        trusted=None if plan.trusted is None else plan.trusted.to(plan.recipe.device),
    )
    with global_state_from(torch.Generator().manual_seed(plan.settings.seed)):
        return methods.build(plan.recipe.method, setting, **_options(plan.settings))


def _never() -> tuple[Tensor, Tensor]:
    raise OptionError("the method draws clean samples while it is made: draw them in step()")


def optimizer_for(plan: Plan, model: nn.Module) -> Optimizer:
    """The model's optimiser at the first step."""
    return optimizer_by(plan.recipe, model)


def optimizer_by(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The optimiser that a recipe says, for a model on the recipe's device."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    on_gpu = recipe.device.startswith("cuda")
    if recipe.optimizer == "sgd":
        return SGD(parameters, lr=rate, momentum=recipe.momentum, weight_decay=decay, fused=on_gpu)
    return AdamW(parameters, lr=rate, weight_decay=decay, fused=on_gpu, capturable=on_gpu)


def _options(settings: Settings) -> dict[str, Any]:
    """The method's options, learned adjusters among them."""
    if not settings.adjusters:
        return dict(settings.options)
    return {**settings.options, "adjusters": load_adjusters(settings.adjusters)}


def _example(plan: Plan) -> Tensor:
    two = plan.encoder.encode(plan.sets.train.take([0, 1]).inputs)
    return plan.encoder.finish(two.to(plan.recipe.device))


def _absolute(settings: Settings) -> Settings:
    """Paths that still hold when the run is resumed from elsewhere."""

    def absolute(path: Any) -> Any:
        return str(Path(path).resolve()) if path and isinstance(path, str) and Path(path).exists() else path

    model = settings.model
    if model is not None and model.startswith("hf:"):
        model = "hf:" + absolute(model.removeprefix("hf:"))
    labels = settings.labels
    if labels is not None:
        file, colon, key = labels.rpartition(":")
        labels = f"{absolute(file)}{colon}{key}" if colon and Path(file).exists() else absolute(labels)
    return replace(
        settings,
        data=absolute(settings.data),
        clean=settings.clean if settings.clean.isdecimal() or settings.clean == "none" else absolute(settings.clean),
        test=settings.test if settings.test in ("auto", "none") else absolute(settings.test),
        also_test={name: absolute(path) for name, path in settings.also_test.items()},
        labels=labels,
        adjusters=tuple(path if is_name(path) else absolute(path) for path in settings.adjusters),
        options={name: absolute(value) if name == "matrix" else value for name, value in settings.options.items()},
        model=model,
    )
