"""Label noise on purpose: clean labels in, noisy labels out, to test what a method makes of them.

Every generator takes labels as a list, a numpy array or a torch tensor and returns the same kind, of the same integer
type and on the same device; the input is never modified. Each label moves independently of the others, so the realised
rate varies around the asked one: :func:`realised` counts it. The same seed gives the same labels for every kind of
input.
"""

from narl.noise.instance import instance
from narl.noise.matrices import asymmetric_matrix, hierarchical_matrix, pair_matrix, symmetric_matrix
from narl.noise.measure import Realised, realised
from narl.noise.transition import asymmetric, hierarchical, pair, symmetric, transition

__all__ = [
    "Realised",
    "asymmetric",
    "asymmetric_matrix",
    "hierarchical",
    "hierarchical_matrix",
    "instance",
    "pair",
    "pair_matrix",
    "realised",
    "symmetric",
    "symmetric_matrix",
    "transition",
]
