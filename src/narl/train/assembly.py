"""From a plan to a loop that trains: the model, its optimiser, the method, the samples on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from narl.bilevel import Processes
from narl.data import augmentation, pools
from narl.data.samples import Samples
from narl.errors import OptionError
from narl.train import engine
from narl.train.batches import CleanBatches, Part
from narl.train.checked import Mixture
from narl.train.engine.stack import Stack
from narl.train.loop import Loop
from narl.train.planning import Plan, method_for, optimizer_for
from narl.train.prepare import Sets

Counter = Callable[[int, int], None]

_WHOLE = 300  # clean samples up to which a meta step looks at all of them


def assemble(
    plan: Plan,
    on_decoded: Counter | None = None,
    processes: Processes | None = None,
    stack: Stack | None = None,
) -> Loop:
    """A loop at its first step.

    Args:
        plan: what the run will do.
        on_decoded: called with the number of training images decoded so far, and of all, while they are brought into
            memory.
        processes: who trains together; None: this process alone.
        stack: where the steps of several trainings become one; None: the steps are the loop's own.

    Returns:
        The loop.
    """
    processes = processes or Processes.alone()
    settings, recipe, sets, encoder = plan.settings, plan.recipe, plan.sets, plan.encoder
    model = plan.model()
    optimizer = optimizer_for(plan, model)
    draws = torch.Generator().manual_seed(settings.seed)
    augment = augmentation.get(recipe.augment)

    def parts() -> tuple[Part, Part | None, dict[str, Part]]:
        train = _part(sets.train, plan, on_decoded)
        clean = None if sets.clean is None else _part(sets.clean, plan)
        return train, clean, {name: _part(samples, plan) for name, samples in _evaluated(sets).items()}

    train, clean_part, evaluated = processes.together(parts)
    processes.same([*model.parameters(), *model.buffers()])
    clean = None
    if sets.clean is not None and clean_part is not None:
        size = settings.clean_batch_size or (len(sets.clean) if len(sets.clean) <= _WHOLE else recipe.batch_size)
        clean = CleanBatches(clean_part, size, augment, encoder.finish, draws, processes)
    method = method_for(plan, model, optimizer, clean, processes)
    if processes.count > 1 and (method.asks_more or not plan.networks.plain):
        raise OptionError(
            f"{method.name} trains several networks, sees several views of a batch or looks at all samples, which "
            "several processes cannot do together: start it without torchrun"
        )
    if processes.count > 1 and not method.distributed:
        raise OptionError(
            f"{method.name} does not say that several processes can train with it: start it as one, or, if it can, set "
            "distributed = True in its class"
        )
    return Loop(
        model=model,
        optimizer=optimizer,
        method=method,
        engine=(engine.make if stack is None else stack.seat)(
            settings.engine,
            method,
            model,
            optimizer,
            clean,
            rows=recipe.batch_size,
            steps=plan.total_steps,
            precision=recipe.precision,
            processes=processes.count,
        ),
        schedule=plan.schedule,
        learning_rate=recipe.learning_rate,
        train=train,
        evaluated=evaluated,
        select="heldout" if "heldout" in evaluated else None,
        patience=settings.patience,
        mislabelled=sets.mislabelled,
        augment=augment,
        views=[augmentation.view(name, recipe.augment) for name in method.views],
        mixture=_mixture(plan),
        finish=encoder.finish,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=settings.seed,
        generator=draws,
        processes=processes,
    )


def _evaluated(sets: Sets) -> dict[str, Samples]:
    parts = {"heldout": sets.heldout, "test": sets.test, **sets.also}
    return {name: samples for name, samples in parts.items() if samples is not None}


def _mixture(plan: Plan) -> Mixture | None:
    """What draws batches with more checked samples than there would be."""
    trusted, share = plan.trusted, plan.recipe.clean_share
    if trusted is None or share is None:
        return None
    return Mixture(trusted.nonzero().flatten(), (~trusted).nonzero().flatten(), share)


def _part(samples: Samples, plan: Plan, on_decoded: Counter | None = None) -> Part:
    pool = pools.make_pool(
        samples.inputs,
        plan.encoder,
        device=torch.device(plan.recipe.device),
        memory_limit=plan.settings.memory_limit,
        workers=plan.settings.workers,
        on_progress=None if on_decoded is None else lambda done: on_decoded(done, len(samples)),
    )
    return Part(pool, torch.as_tensor(samples.labels, device=plan.recipe.device))
