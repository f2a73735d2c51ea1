r"""How far from symmetric a loss is, and what that costs under label noise: the paper's theorems, checked.

A loss whose sum over all labels, :math:`S(z) = \sum_{j=1}^c \ell(z, j)`, is the same for every prediction is not misled
by symmetric noise. For the others, noise costs at most a multiple of :math:`C_U - C_L`, the room in which S moves.
:func:`bounds` gives the right ends of that room, :func:`printed_bounds` the paper's.
"""

from narl.theory.evidence import even_probability, js_weight, right_label
from narl.theory.propositions import adjusted_gce_bounds, positive_margins
from narl.theory.risks import asymmetric_excess_risk_bound, clean_risk_gap_bound, excess_risk_bound
from narl.theory.sums import Bounds, bounds, noise_aware_bounds, printed_bounds

__all__ = [
    "Bounds",
    "adjusted_gce_bounds",
    "asymmetric_excess_risk_bound",
    "bounds",
    "clean_risk_gap_bound",
    "even_probability",
    "excess_risk_bound",
    "js_weight",
    "noise_aware_bounds",
    "positive_margins",
    "printed_bounds",
    "right_label",
]
