"""What the classifier does where nobody said: the method, and how long it trains."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch

from narl import losses
from narl.adjuster import Adjuster
from narl.adjuster.turns import meant_for
from narl.data.encoder import Encoder
from narl.errors import OptionError, nearest
from narl.integrations.sklearn.sparse import SparseEncoder
from narl.train import methods
from narl.train.adjusters import load_adjusters, without_clean
from narl.train.batches import steps_per_epoch
from narl.train.defaults import Recipe, decide
from narl.train.environment import usable_device
from narl.train.settings import Settings

AUTO = "auto"
_FEWEST_STEPS, _MOST_EPOCHS = 600, 200
_A_META_STEP = 600
_EPOCHS_SPARSE = 10  # a network of thousands of columns learns its few thousand rows by heart after that


def methods_of(loss: str, adjuster: Any, kind: str, *, clean: bool) -> list[tuple[str, dict[str, Any]]]:
    """The methods that come into question, and the options that come with each.

    Args:
        loss: name of a robust loss, or ``"auto"``.
        adjuster: ``"auto"``, ``"learned"``, None, or one that was learned elsewhere: an adjuster, its snapshots, files,
            a run, the name of a shipped one.
        kind: of the data.
        clean: whether there are clean samples to learn from.

    Returns:
        One, or two for the clean samples to choose from.

    Example:
        >>> [name for name, options in methods_of("gce", "learned", "table", clean=True)]
        ['A-GCE']
        >>> [name for name, options in methods_of("mae", "auto", "table", clean=True)]
        ['MAE']
    """
    given_ones = _learned_before(adjuster)
    usual = given_ones[0].robust_loss.name if given_ones else "gce"
    own = usual if loss == AUTO else loss
    adjustable = bool(losses.get(own).hyperparameters)
    if adjuster is None:
        return [(methods.get(own).name, {})]
    if isinstance(adjuster, str) and adjuster in (AUTO, "learned"):
        learned: list[tuple[str, dict[str, Any]]] = [(methods.get(f"A-{own}").name, {})] if clean and adjustable else []
        if adjuster == "learned":
            if not learned:
                reason = "there is no clean set: give fit(X, y, clean=(X_checked, y_checked))"
                raise OptionError(
                    f"no adjuster can be learned: {reason if adjustable else f'{loss} has nothing to adjust'}"
                )
            return learned
        name, shipped = without_clean(None if loss == AUTO else loss, kind)
        given = {} if shipped is None else {"adjusters": _serving(load_adjusters([shipped]), kind)}
        return [(methods.get(name).name, given), *learned]
    if not adjustable:
        raise OptionError(f"the loss {loss!r} has no hyperparameters to adjust: leave adjuster out, or choose another")
    return [(methods.get(f"T-{own}").name, {"adjusters": _serving(given_ones, kind)})]


def _serving(adjusters: list[Adjuster], kind: str) -> list[Adjuster]:
    """On sparse rows, which are trained as texts but by a perceptron, those for tables, however short the training."""
    return meant_for(adjusters, "table") if kind == "text" else adjusters


def _learned_before(adjuster: Any) -> list[Adjuster]:
    """Adjusters that were given, themselves or their files; none for ``"auto"``, ``"learned"`` and None."""
    if adjuster is None or (isinstance(adjuster, str) and adjuster in (AUTO, "learned")):
        return []
    given: Sequence[Any] = adjuster if isinstance(adjuster, (list, tuple)) else [adjuster]
    if all(isinstance(one, (str, os.PathLike)) for one in given):
        given = load_adjusters([os.fspath(one) for one in given])
    if not given or not all(isinstance(one, Adjuster) for one in given):
        raise OptionError(
            f"adjuster is a {type(adjuster).__name__}: give 'auto', 'learned', None, a narl.Adjuster or its snapshots, "
            "or files"
        )
    return list(given)


def check_options(given: Mapping[str, Any] | None, candidates: Sequence[str]) -> None:
    """Refuse options that no method in question has.

    Example:
        >>> check_options({"qq": 0.5}, ["GCE"])
        Traceback (most recent call last):
        narl.errors.OptionError: GCE has no option 'qq': did you mean 'q'? Known: q
    """
    known = {option for method in candidates for option in methods.get(method).options}
    for name in given or {}:
        if name not in known:
            way = nearest(name, known) if known else "it has none"
            have = "has" if len(candidates) == 1 else "have"
            fixed = methods.fixed_with(name)
            if fixed is not None:
                way = f"it is one of the fixed {fixed}, which loss={fixed.lower()!r}, adjuster=None asks for"
            raise OptionError(f"{' and '.join(candidates)} {have} no option {name!r}: {way}")


def reporter(method: str, epochs: int) -> Callable[[Mapping[str, Any]], None]:
    """What writes a line an epoch to standard error, as ``narl train`` does."""

    def report(record: Mapping[str, Any]) -> None:
        parts = [f"{method}  epoch {record['epoch']}/{epochs}  loss {record['loss']:.3f}"]
        if record["meta_loss"] is not None:
            parts.append(f"meta {record['meta_loss']:.3f}")
        if "heldout_accuracy" in record:
            parts.append(f"held out {record['heldout_accuracy']:.1%}")
        sys.stderr.write("  ".join(parts) + "\n")

    return report


def options_of(
    method: str,
    own: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    *,
    steps: int | None,
) -> dict[str, Any]:
    """All options of a method.

    Args:
        method: its name.
        own: those that come with it.
        given: by the user, for whichever method has them.
        steps: of the training; None: samples pass by once, and nobody knows how many.

    Example:
        >>> options_of("GCE", {}, {"q": 0.5, "every": 2}, steps=600)
        {'q': 0.5}
    """
    spec = methods.get(method)
    found = dict(own)
    if spec.needs_clean and steps is None and "margin" in spec.options:
        found["margin"] = "latest"  # no sample comes twice
    if spec.needs_clean and "every" in spec.options:
        # A small network's meta iteration takes eight plain steps; every fifth was as good in runs of thousands.
        found["every"] = min(max(round((steps or 0) / _A_META_STEP), 1), 5)
    return found | {name: value for name, value in (given or {}).items() if name in spec.options}


def kind_of(encoder: Encoder) -> str:
    """What kind of data it is to be trained as: sparse rows, mostly counts of words, as texts."""
    return "text" if isinstance(encoder, SparseEncoder) else encoder.kind


def recipe_of(estimator: Any, encoder: Encoder, method: str, samples: int) -> Recipe:
    """How to train: what the estimator's parameters say, and narl's defaults for such data.

    Small data get more epochs than ``narl train`` gives them, until there are 600 steps: an estimator is fitted on a
    hundred rows as well.
    """
    _check(estimator)
    asked = Settings(
        data="X",
        method=method,
        epochs=None if estimator.max_iter is None else int(estimator.max_iter),
        batch_size=None if estimator.batch_size is None else int(estimator.batch_size),
        optimizer=estimator.optimizer,
        learning_rate=None if estimator.learning_rate is None else float(estimator.learning_rate),
        weight_decay=None if estimator.weight_decay is None else float(estimator.weight_decay),
        augment=estimator.augment,
    )
    recipe = decide(
        asked,
        kind=kind_of(encoder),
        samples=samples,
        channels=encoder.shape.get("in_channels", 0),
        device=usable_device(estimator.device),
        threads=torch.get_num_threads(),
    )
    recipe = replace(recipe, batch_size=min(recipe.batch_size, max(samples, 1)))
    if estimator.max_iter is None:
        if isinstance(encoder, SparseEncoder):
            recipe = replace(recipe, epochs=_EPOCHS_SPARSE)
        enough = math.ceil(_FEWEST_STEPS / steps_per_epoch(samples, recipe.batch_size))
        recipe = replace(recipe, epochs=max(recipe.epochs, min(enough, _MOST_EPOCHS)))
    # Wide sparse rows are large matrix products, which several threads share well.
    return replace(recipe, threads=torch.get_num_threads()) if isinstance(encoder, SparseEncoder) else recipe


def _check(estimator: Any) -> None:
    """Refuse parameters that make no sense, by the names that the user knows them by."""
    for name, least in {"max_iter": 1, "batch_size": 2, "n_iter_no_change": 1}.items():
        value = getattr(estimator, name)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if value is not None and not (whole and int(value) >= least):
            raise OptionError(f"{name} = {value!r} makes no sense: give a whole number of at least {least}")
    for name, positive in {"learning_rate": True, "weight_decay": False}.items():
        value = getattr(estimator, name)
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and (value > 0 or (value == 0 and not positive))):
            raise OptionError(
                f"{name} = {value!r} makes no sense: give a number {'above' if positive else 'of at least'} 0"
            )
    share = estimator.validation_fraction
    if not isinstance(share, Real) or not 0 < float(share) < 1:
        raise OptionError(
            f"validation_fraction = {share!r} is no share of the clean set: give a number between 0 and 1"
        )
