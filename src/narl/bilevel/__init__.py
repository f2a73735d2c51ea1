"""Bilevel training: the exact hypergradient, derived in README.md beside this file, and the step that uses it."""

from narl.bilevel.hypergradient import Objective, hypergradient
from narl.bilevel.step import MetaStep, StepReport

__all__ = ["MetaStep", "Objective", "StepReport", "hypergradient"]
