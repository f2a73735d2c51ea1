"""The adjuster: margin and task family in, a robust loss's hyperparameters out."""

from narl.adjuster.criterion import AdjustedLoss
from narl.adjuster.families import Families
from narl.adjuster.margins import margin
from narl.adjuster.network import Adjuster

__all__ = ["AdjustedLoss", "Adjuster", "Families", "margin"]
