"""Mixup: cross entropy on mixtures of two samples and of their labels."""

from __future__ import annotations

from typing import Any, cast, final

import torch.nn.functional as F
from torch import Tensor

from narl.adjuster import margin
from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs
from narl.bilevel.rivals import rivals
from narl.checks import at_least_float32
from narl.errors import OptionError
from narl.train.methods.base import Method, Setting
from narl.train.methods.descent import descend
from narl.train.methods.mixing import Mixer, beta_share, mixed, one_hot, partners
from narl.train.methods.spec import MethodSpec, Option


@final
class Mixup(Method):
    r"""Trains on :math:`\lambda x_i + (1 - \lambda) x_j` with the targets :math:`\lambda y_i + (1 - \lambda) y_j`.

    One λ a batch, from Beta(α, α), the larger share of the two. Margins are those of the mixtures, against the label of
    the sample that has the larger share.

    Args:
        setting: what there is to work with.
        alpha: α.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = Mixup(Setting(model, optimizer, torch.tensor([5, 5]), None, 9, 10, torch.Generator()))
        >>> method.step(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3)).margins.shape
        torch.Size([3])

    Reference: Zhang, Cissé, Dauphin, Lopez-Paz. mixup: beyond empirical risk minimization. ICLR 2018.
    """

    unmoved = "its steps mix samples"

    def __init__(self, setting: Setting, *, alpha: float = 1.0) -> None:
        if setting.weights is not None:
            raise OptionError("Mixup takes no weights of samples: choose another method, or no weights")
        self.setting, self.alpha = setting, alpha
        self._mixer = Mixer(setting.kind, setting.shape, alpha)

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch."""
        generator = self.setting.generator
        before = generator.get_state()
        order, share = partners(len(y), generator, y.device), beta_share(self.alpha, generator)
        try:
            loss, logits = descend(
                self.setting.model,
                self.setting.optimizer,
                self._mixer(cast("Tensor", x), order, share),  # refused there if it is none
                y,
                lambda logits: self._values(logits, y, order, share),
            )
        except BaseException:
            generator.set_state(before)  # a batch that is refused leaves nothing behind
            raise
        return StepReport(loss, None, {}, margin(logits, y), rivals(logits, y))

    def _values(self, logits: Tensor, y: Tensor, order: Tensor, share: float) -> Tensor:
        targets = mixed(one_hot(y, logits.shape[1]), order, share)
        return F.cross_entropy(at_least_float32(logits), targets.to(at_least_float32(logits).dtype), reduction="none")

    def state_dict(self) -> dict[str, Any]:
        """The source of random numbers."""
        return {"generator": self.setting.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.setting.generator.set_state(state["generator"])


SPEC = MethodSpec(
    name="Mixup",
    make=Mixup,
    description="cross entropy on mixtures of two samples and of their labels",
    options={
        "alpha": Option(1.0, "α of the mixture's Beta distribution; larger: more even mixtures", low=0, high=1000)
    },
)
