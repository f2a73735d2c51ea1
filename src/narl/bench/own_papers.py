"""Options of methods in the tables: those of each method's own paper, where it has trained on such data."""

from __future__ import annotations

from typing import Any

from narl.bench.cells import Task

# Englesson and Azizpour, NeurIPS 2021: the configurations published with the paper (js-*.yaml, js_weights).
_PI1 = {
    ("CIFAR-10", "symmetric"): {0.0: 0.1, 0.2: 0.7, 0.4: 0.7, 0.6: 0.9},
    ("CIFAR-10", "asymmetric"): {0.2: 0.3, 0.4: 0.3},
    ("CIFAR-100", "symmetric"): {0.0: 0.1, 0.2: 0.1, 0.4: 0.3, 0.6: 0.5},
    ("CIFAR-100", "asymmetric"): {0.2: 0.5, 0.4: 0.5},
}
# Wei et al., ICLR 2022: share of wrong labels.
_HUMAN = {"aggregate": 0.09, "random1": 0.17, "worst": 0.40}
_MOVED = 0.4  # of CIFAR-10's classes four lose samples to others in asymmetric noise


def hyperparameters(method: str, task: Task) -> dict[str, Any]:
    """What a method's own paper used on such labels; {}: nothing else than narl's default.

    GCE's q = 0.7 (Zhang and Sabuncu, NeurIPS 2018) and SL's γ₁ = 0.1, γ₂ = 1 for CIFAR-10 (Wang et al., ICCV 2019) are
    narl's defaults. TinyImageNet gets what the papers have for CIFAR-100, the most classes that they tried. Systems
    that are told the noise are told it, as in their papers: Co-teaching the share of wrong labels, DivideMix and ELR+
    the kind of noise and, DivideMix, its rate. What ELR+ had for mini-WebVision (λ = 3, β = 0.7) is the default.

    Example:
        >>> task = Task("CIFAR-10", "symmetric", 0.4)
        >>> hyperparameters("JS", task), hyperparameters("GCE", task), hyperparameters("Co-teaching", task)
        ({'pi1': 0.7}, {}, {'forget': 0.4})
    """
    dataset = "CIFAR-100" if task.dataset.startswith("TinyImageNet") else task.dataset
    if method == "JS" and task.rate is not None:
        found = _PI1.get((dataset, task.noise), {}).get(task.rate)
        return {} if found is None else {"pi1": found}
    if method == "SL" and dataset == "CIFAR-100":
        return {"gamma1": 6.0, "gamma2": 0.1}  # Wang et al., ICCV 2019
    if method == "DivideMix" and task.dataset == "mini-WebVision":
        return {"unlabelled": 0.0, "alpha": 0.5, "warmup": 1}  # Li, Socher, Hoi, ICLR 2020: the code of its authors
    share = _wrong(task)
    if method == "Co-teaching" and share is not None:
        return {"forget": share}  # Han et al., NeurIPS 2018: the noise rate
    if method == "DivideMix" and share is not None:
        return _divide_mix(dataset, task, share)
    if method in ("ELR", "ELR+"):
        return _elr(dataset, task)
    return {}


def _wrong(task: Task) -> float | None:
    """The share of wrong labels, where it is known beforehand."""
    if task.rate is None:
        return _HUMAN.get(task.noise)
    return round(_MOVED * task.rate, 6) if (task.dataset, task.noise) == ("CIFAR-10", "asymmetric") else task.rate


def _divide_mix(dataset: str, task: Task, share: float) -> dict[str, Any]:
    """Li, Socher, Hoi, ICLR 2020, appendix: λ_u by noise; labels by people as symmetric noise of the nearest rate."""
    many = dataset == "CIFAR-100"
    if task.noise == "asymmetric":
        return {"penalty": True, "unlabelled": 0.0}
    if share <= 0.3:
        return {"unlabelled": 25.0 if many else 0.0}
    extreme = share >= 0.9
    weight = 150.0 if many else 50.0 if extreme else 25.0
    return {"unlabelled": weight, **({"threshold": 0.6, "remembered": 5} if extreme else {})}


def _elr(dataset: str, task: Task) -> dict[str, Any]:
    """Liu et al., NeurIPS 2020: the configurations published with the paper."""
    if dataset == "CIFAR-100":
        return {"strength": 7.0, "decay": 0.9}
    return {"strength": 1.0, "decay": 0.9} if task.noise == "asymmetric" else {}
