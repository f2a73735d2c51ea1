"""Bilevel training: the exact hypergradient, derived in README.md beside this file, and the step that uses it."""

from narl.bilevel.hypergradient import Objective, hypergradient
from narl.bilevel.processes import Processes
from narl.bilevel.reports import StepReport
from narl.bilevel.step import MetaStep

__all__ = ["MetaStep", "Objective", "Processes", "StepReport", "hypergradient"]
