"""Options of methods in the tables: those of each method's own paper, where it has trained on such data.

All were compared with the code that its authors published: ErikEnglesson/GJS (``scripts/*/js-*.yaml``),
YisenWang/symmetric_cross_entropy_for_noisy_labels (``train_models.py``), bhanML/Co-teaching (``main.py``),
LiJunnan1992/DivideMix (``Train_CIFAR.py``, ``Train_webvision.py``) and shengliu66/ELR (``ELR*/config_*.json``), all on
GitHub. DivideMix's λ_u and threshold by noise rate are arguments there, and set as others who built on it do.
"""

from __future__ import annotations

from typing import Any

from narl.bench.cells import Task

# Englesson and Azizpour, NeurIPS 2021: js_weights of the published configurations.
_PI1 = {
    ("CIFAR-10", "symmetric"): {0.0: 0.1, 0.2: 0.7, 0.4: 0.7, 0.6: 0.9},
    ("CIFAR-10", "asymmetric"): {0.2: 0.3, 0.4: 0.3},
    ("CIFAR-100", "symmetric"): {0.0: 0.1, 0.2: 0.1, 0.4: 0.3, 0.6: 0.5},
    ("CIFAR-100", "asymmetric"): {0.2: 0.5, 0.4: 0.5},
}
# Wei et al., ICLR 2022: share of wrong labels.
_HUMAN = {"aggregate": 0.09, "random1": 0.17, "worst": 0.40}
_MOVED = 0.4  # of CIFAR-10's classes four lose samples to others in asymmetric noise
_RAMP = 0.41  # of ELR+'s training on CIFAR-100: 40,000 of its 250 · 391 steps


def hyperparameters(method: str, task: Task, epochs: int) -> dict[str, Any]:
    """What a method's own paper used on such labels; {}: nothing else than narl's default.

    GCE's q = 0.7 (Zhang and Sabuncu, NeurIPS 2018) and SL's γ₁ = 0.1, γ₂ = 1 for CIFAR-10 (Wang et al., ICCV 2019) are
    narl's defaults; so is A = −4, where SL's published code has log 0.0001 = −9.2. TinyImageNet gets what the papers
    have for CIFAR-100, the most classes that they tried. Systems that are told the noise are told it, as in their
    papers: Co-teaching the share of wrong labels, DivideMix and ELR+ the kind of noise and, DivideMix, its rate. λ = 3
    and β = 0.7, which ELR+ had for mini-WebVision, are the default.

    Args:
        method: its name.
        task: what it is trained on.
        epochs: how long: DivideMix warms up for at most a third of it.

    Example:
        >>> task = Task("CIFAR-10", "symmetric", 0.4)
        >>> [hyperparameters(method, task, 120) for method in ("JS", "GCE", "Co-teaching")]
        [{'pi1': 0.7}, {}, {'forget': 0.4}]
    """
    dataset = "CIFAR-100" if task.dataset.startswith("TinyImageNet") else task.dataset
    if method == "JS" and task.rate is not None:
        found = _PI1.get((dataset, task.noise), {}).get(task.rate)
        return {} if found is None else {"pi1": found}
    if method == "SL" and dataset == "CIFAR-100":
        return {"gamma1": 6.0, "gamma2": 0.1}
    if method == "DivideMix" and task.dataset == "mini-WebVision":
        return {"unlabelled": 0.0, "alpha": 0.5, "warmup": 1}
    share = _wrong(task)
    if method == "Co-teaching" and share is not None:
        return {"forget": share}  # Han et al., NeurIPS 2018: the noise rate
    if method == "DivideMix" and share is not None:
        return _divide_mix(dataset, task, share, epochs)
    if method in ("ELR", "ELR+"):
        return _elr(dataset, task) | (_averaging(dataset) if method == "ELR+" else {})
    return {}


def _wrong(task: Task) -> float | None:
    """The share of wrong labels, where it is known beforehand."""
    if task.rate is None:
        return _HUMAN.get(task.noise)
    return round(_MOVED * task.rate, 6) if (task.dataset, task.noise) == ("CIFAR-10", "asymmetric") else task.rate


def _divide_mix(dataset: str, task: Task, share: float, epochs: int) -> dict[str, Any]:
    """Li, Socher, Hoi, ICLR 2020, appendix: λ_u by noise; labels by people as symmetric noise of the nearest rate."""
    many = dataset == "CIFAR-100"
    longer = {"warmup": max(1, min(30, epochs // 3))} if many else {}
    if task.noise == "asymmetric":
        return {"penalty": True, "unlabelled": 0.0, **longer}
    if share <= 0.3:
        return {"unlabelled": 25.0 if many else 0.0, **longer}
    extreme = share >= 0.9
    weight = 150.0 if many else 50.0 if extreme else 25.0
    return {"unlabelled": weight, **({"threshold": 0.6, "remembered": 5} if extreme else {}), **longer}


def _elr(dataset: str, task: Task) -> dict[str, Any]:
    """Liu et al., NeurIPS 2020: the configurations published with the paper."""
    if dataset == "CIFAR-100":
        return {"strength": 7.0, "decay": 0.9}
    return {"strength": 1.0, "decay": 0.9} if task.noise == "asymmetric" else {}


def _averaging(dataset: str) -> dict[str, Any]:
    """How the published ELR+ begins, where it is not as on CIFAR-10."""
    if dataset == "CIFAR-100":
        return {"rampup": _RAMP, "average_ramp": _RAMP}
    return {"average_ramp": 0.0} if dataset == "mini-WebVision" else {}
