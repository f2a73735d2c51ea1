"""When an audit is not to be relied on."""

from __future__ import annotations

import numpy as np

from narl.audit.verdicts import Verdicts

_NEARLY_ALL, _MOST, _MANY = 0.9, 0.5, 0.05


def doubt_of(verdicts: Verdicts) -> str | None:
    """What speaks against an audit: its classifier contradicts labels that are known to be right, too.

    Whatever a classifier has not learned looks like noise. If it contradicts right labels at least half as often as it
    finds wrong ones, then half of its finds, or more, may be its own mistakes. Without clean samples that is not known;
    but one that would have one class for nearly everything, or contradicts most labels, may have learned too little.

    Args:
        verdicts: an audit's.

    Returns:
        One sentence or two; None where there is nothing to say.

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
    if not found:
        return None
    if verdicts.contradicted is None:
        return _by_itself(verdicts, found)
    if verdicts.contradicted < found / 2:
        return None
    return (
        f"the classifier contradicts {verdicts.contradicted:.1%} of the clean labels, which are right, and {found:.1%} "
        "of the others: much of what looks wrong may be what it has not learned. Train longer or with another model "
        "before you rely on this audit."
    )


def _by_itself(verdicts: Verdicts, found: float) -> str | None:
    """What can be said without clean samples."""
    said = np.where(verdicts.wrong, verdicts.suggested, verdicts.given)
    likely = int(np.bincount(said, minlength=len(verdicts.class_names)).argmax())
    others = verdicts.given != likely
    advice = (
        "or the classifier has learned too little. Look at some of them (narl review) before you rely on this audit."
    )
    if others.mean() >= _MANY and float((said[others] == likely).mean()) >= _NEARLY_ALL:
        share, name = float((said == likely).mean()), verdicts.class_names[likely]
        return f"the classifier would call {share:.1%} of all samples {name!r}: either nearly all are, {advice}"
    if found > _MOST:
        return f"the classifier contradicts {found:.1%} of all labels: either most are wrong, {advice}"
    return None
