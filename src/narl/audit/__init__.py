"""Which labels are wrong: scores, suggestions and the noise in all, from a training run or from predictions.

``from_run("run")`` is what ``narl audit run`` does; ``from_logits(logits, labels)`` judges by predictions that were
made elsewhere; ``from_folds("run", 5)`` trains five times more, so that no label is judged by who has learned it.
"""

from narl.audit.folds import from_folds
from narl.audit.predictions import from_logits
from narl.audit.runs import from_run
from narl.audit.verdicts import NoiseEstimate, Verdicts

__all__ = ["NoiseEstimate", "Verdicts", "from_folds", "from_logits", "from_run"]
