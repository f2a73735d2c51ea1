"""Hyperparameters of fixed losses in the tables: those of each loss's own paper, where it has trained on such data."""

from __future__ import annotations

from narl.bench.cells import Task

# Englesson and Azizpour, NeurIPS 2021: the configurations published with the paper (js-*.yaml, js_weights).
_PI1 = {
    ("CIFAR-10", "symmetric"): {0.0: 0.1, 0.2: 0.7, 0.4: 0.7, 0.6: 0.9},
    ("CIFAR-10", "asymmetric"): {0.2: 0.3, 0.4: 0.3},
    ("CIFAR-100", "symmetric"): {0.0: 0.1, 0.2: 0.1, 0.4: 0.3, 0.6: 0.5},
    ("CIFAR-100", "asymmetric"): {0.2: 0.5, 0.4: 0.5},
}


def hyperparameters(method: str, task: Task) -> dict[str, float]:
    """What a method's own paper used on such labels; {}: nothing else than narl's default.

    GCE's q = 0.7 (Zhang and Sabuncu, NeurIPS 2018) and SL's γ₁ = 0.1, γ₂ = 1 for CIFAR-10 (Wang et al., ICCV 2019) are
    narl's defaults. TinyImageNet gets what the papers have for CIFAR-100, the most classes that they tried.

    Example:
        >>> task = Task("CIFAR-10", "symmetric", 0.4)
        >>> hyperparameters("JS", task), hyperparameters("GCE", task)
        ({'pi1': 0.7}, {})
    """
    dataset = "CIFAR-100" if task.dataset.startswith("TinyImageNet") else task.dataset
    if method == "JS" and task.rate is not None:
        found = _PI1.get((dataset, task.noise), {}).get(task.rate)
        return {} if found is None else {"pi1": found}
    if method == "SL" and dataset == "CIFAR-100":
        return {"gamma1": 6.0, "gamma2": 0.1}  # Wang et al., ICCV 2019
    return {}
