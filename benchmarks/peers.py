"""The same meta iteration by libraries for bilevel optimisation, each used as its documentation shows.

They are no part of narl's requirements: ``pip install -c constraints.txt -r benchmarks/requirements.txt``.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forms import Form, Iteration, move_adjuster
from problems import Problem


def higher(problem: Problem, precision: str) -> Iteration:
    """A differentiable copy of model and optimiser inside ``innerloop_ctx``, then the model's own step."""
    import higher as library

    problem.channels_first()

    def iteration() -> None:
        with library.innerloop_ctx(problem.model, problem.optimizer) as (model, optimizer):
            optimizer.step(problem.loss(model(problem.noisy.x)))
            meta_loss = F.cross_entropy(model(problem.clean.x), problem.clean.y)
            move_adjuster(problem, torch.autograd.grad(meta_loss, list(problem.adjuster.parameters())))
        _own_step(problem)

    return iteration


def torchopt(problem: Problem, precision: str) -> Iteration:
    """A ``MetaSGD`` step on the model itself, taken back, then the model's own step."""
    import torchopt as library

    problem.channels_first()
    group = problem.optimizer.param_groups[0]
    settings = {key: group[key] for key in ("lr", "momentum", "weight_decay")}
    optimizer = library.MetaSGD(problem.model, **settings, moment_requires_grad=False)
    _spend_first_update(optimizer)

    def iteration() -> None:
        _hand_over_momentum(problem, optimizer)
        before = library.extract_state_dict(problem.model, by="reference", with_buffers=True, detach_buffers=True)
        optimizer.step(problem.loss(problem.model(problem.noisy.x)))
        meta_loss = F.cross_entropy(problem.model(problem.clean.x), problem.clean.y)
        move_adjuster(problem, torch.autograd.grad(meta_loss, list(problem.adjuster.parameters())))
        library.recover_state_dict(problem.model, before)
        _own_step(problem)

    return iteration


def _spend_first_update(optimizer: Any) -> None:
    """Its first update does not scale the momentum down: fine where that is zero, as it is not here."""
    from torchopt import pytree

    weights = tuple(pytree.tree_leaves(optimizer.param_containers_groups[0]))
    still = tuple(torch.zeros_like(weight) for weight in weights)
    optimizer.impl.update(still, optimizer.impl.init(weights), params=weights, inplace=False)


def _hand_over_momentum(problem: Problem, optimizer: Any) -> None:
    """Let the differentiable optimiser know the momentum that the real one has."""
    from torchopt import pytree

    weights = pytree.tree_leaves(optimizer.param_containers_groups[0])
    state = optimizer.impl.init(tuple(weights))
    moments = [problem.optimizer.state[weight].get("momentum_buffer") for weight in weights]
    if None not in moments:
        state = tuple(part._replace(trace=moments) if hasattr(part, "trace") else part for part in state)
    optimizer.state_groups[0] = state


def betty(problem: Problem, precision: str) -> Iteration:
    """Two ``ImplicitProblem`` and an ``Engine``, with its default hypergradient: finite differences (DARTS).

    Betty differentiates the best response, not the step: its gradient lacks the learning rate. Adam does not care; for
    the comparison with the exact gradient the loss is multiplied by it here.
    """
    logging.getLogger("betty").disabled = True
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.problems import ImplicitProblem

    rate = problem.optimizer.param_groups[0]["lr"]

    class Upper(ImplicitProblem):  # type: ignore[misc]
        """Moves the adjuster by the clean batch."""

        def training_step(self, batch: Any) -> Tensor:
            x, y = batch
            loss: Tensor = rate * F.cross_entropy(self.classifier(x), y)
            return loss

    class Lower(ImplicitProblem):  # type: ignore[misc]
        """Moves the classifier by the noisy batch."""

        def training_step(self, batch: Any) -> Tensor:
            x, y, ids = batch
            loss: Tensor = problem.adjuster.loss(self.forward(x), y, ids).mean()
            return loss

    noisy, clean, device = problem.noisy, problem.clean, problem.device
    upper = Upper(
        name="adjuster",
        config=Config(),
        module=problem.adjuster,
        optimizer=problem.adjuster_optimizer,
        train_data_loader=[(clean.x, clean.y)],
        device=device,
    )
    lower = Lower(
        name="classifier",
        config=Config(unroll_steps=1),
        module=problem.model,
        optimizer=problem.optimizer,
        train_data_loader=[(noisy.x, noisy.y, noisy.ids)],
        device=device,
    )
    dependencies = {"u2l": {upper: [lower]}, "l2u": {lower: [upper]}}
    engine = Engine(problems=[upper, lower], config=EngineConfig(), dependencies=dependencies)
    engine.train()
    iteration: Iteration = engine.train_step
    return iteration


def _own_step(problem: Problem) -> None:
    """The model's step by the adjusted loss, which has just changed."""
    problem.optimizer.zero_grad(set_to_none=True)
    loss = problem.loss(problem.model(problem.noisy.x))
    torch.autograd.backward(loss, inputs=list(problem.model.parameters()))
    problem.optimizer.step()


_LIBRARIES: dict[str, Form] = {"betty": betty, "torchopt": torchopt, "higher": higher}


def installed() -> dict[str, Form]:
    """The libraries that can be imported here."""
    return {name: form for name, form in _LIBRARIES.items() if importlib.util.find_spec(name) is not None}


def missing() -> list[str]:
    """Those that cannot."""
    return [name for name in _LIBRARIES if name not in installed()]
