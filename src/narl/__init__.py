"""narl trains classifiers on wrongly labelled data with robust losses that set their own hyperparameters.

Names are imported when first used, so that ``import narl`` and ``narl --help`` answer at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narl._version import __version__
from narl.errors import NarlError, NarlWarning

if TYPE_CHECKING:
    from narl import audit, bilevel, data, integrations, losses, models, noise, theory, train
    from narl.adjuster import AdjustedLoss, Adjuster, Families, margin
    from narl.adjuster.pretrained import pretrained
    from narl.bilevel import MetaStep, StepReport, hypergradient
    from narl.integrations.sklearn import NoiseAwareClassifier

_ROOM_OF = {
    "AdjustedLoss": "narl.adjuster",
    "Adjuster": "narl.adjuster",
    "Families": "narl.adjuster",
    "MetaStep": "narl.bilevel",
    "NoiseAwareClassifier": "narl.integrations.sklearn",
    "StepReport": "narl.bilevel",
    "hypergradient": "narl.bilevel",
    "margin": "narl.adjuster",
    "pretrained": "narl.adjuster.pretrained",
}
_ROOMS = ("audit", "bilevel", "data", "integrations", "losses", "models", "noise", "theory", "train")

__all__ = [
    "AdjustedLoss",
    "Adjuster",
    "Families",
    "MetaStep",
    "NarlError",
    "NarlWarning",
    "NoiseAwareClassifier",
    "StepReport",
    "__version__",
    "audit",
    "bilevel",
    "data",
    "hypergradient",
    "integrations",
    "losses",
    "margin",
    "models",
    "noise",
    "pretrained",
    "theory",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _ROOM_OF:
        value: object = getattr(importlib.import_module(_ROOM_OF[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"narl.{name}")
    else:
        raise AttributeError(f"module 'narl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
