"""Robust losses, one value a sample, with hyperparameters for the whole batch or for every sample.

All of them are functions of the label's log-probability, so they are finite for logits of any size. ``get`` and
``register`` are the registry from which the adjuster learns which hyperparameters a loss has and where they may lie.
"""

from narl.losses.ce import ce
from narl.losses.gce import gce
from narl.losses.inputs import over_labels
from narl.losses.js import js
from narl.losses.mae import mae
from narl.losses.polysoft import polysoft
from narl.losses.sl import sl
from narl.losses.spec import Hyperparameter, RobustLoss, get, names, register, unregister

__all__ = [
    "Hyperparameter",
    "RobustLoss",
    "ce",
    "gce",
    "get",
    "js",
    "mae",
    "names",
    "over_labels",
    "polysoft",
    "register",
    "sl",
    "unregister",
]
