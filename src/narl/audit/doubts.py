"""When an audit is not to be relied on."""

from __future__ import annotations

from narl.audit.verdicts import Verdicts


def doubt_of(verdicts: Verdicts) -> str | None:
    """What speaks against an audit: its classifier contradicts labels that are known to be right, too.

    Whatever a classifier has not learned looks like noise. If it contradicts right labels at least half as often as it
    finds wrong ones, then half of its finds, or more, may be its own mistakes.

    Args:
        verdicts: an audit's.

    Returns:
        One sentence or two; None where there is nothing to say, as there is nothing known without clean samples.

    Example:
        >>> from narl import audit
        >>> import torch
        >>> guesses = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).repeat(20, 1)  # whatever the sample is
        >>> labels = torch.tensor([0, 0, 1, 1] * 10)
        >>> verdicts = audit.from_logits(guesses, labels, clean=(guesses, labels))
        >>> verdicts.contradicted, doubt_of(verdicts).split(":")[0]
        (0.5, 'the classifier contradicts 50.0% of the clean labels, which are right, and 50.0% of the others')
    """
    found = float(verdicts.wrong.mean()) if len(verdicts) else 0.0
    if verdicts.contradicted is None or not found or verdicts.contradicted < found / 2:
        return None
    return (
        f"the classifier contradicts {verdicts.contradicted:.1%} of the clean labels, which are right, and {found:.1%} "
        "of the others: much of what looks wrong may be what it has not learned. Train longer or with another model "
        "before you rely on this audit."
    )
