"""From evidence to verdicts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narl.audit.calibration import calibrated
from narl.audit.evidence import Evidence
from narl.audit.noise_estimate import estimate, priors
from narl.audit.threshold import centred, threshold
from narl.audit.verdicts import Classes, Numbers, Verdicts

Clean = tuple[NDArray[np.floating], Classes]
"""Logits ``(M, c)`` of samples that were not trained on, and their labels ``(M,)``, which are right."""


def judge(
    evidence: Evidence,
    *,
    ids: NDArray[np.str_],
    given: Classes,
    class_names: tuple[str, ...],
    family: Classes | None = None,
    clean: Clean | None = None,
) -> Verdicts:
    """Scores, suggestions and estimates.

    The score is the support for the label, moved so that the threshold between wrong and right labels is one half. A
    label below that is held for wrong, and its rival is suggested.

    Args:
        evidence: for and against the labels.
        ids: names of the samples, ``(N,)``.
        given: their labels, ``(N,)``.
        class_names: of the c classes.
        family: task families of the labels, ``(N,)``; None: there are none.
        clean: to calibrate with, and to see how often right labels are contradicted.
    """
    num_classes = len(class_names)
    cut = threshold(evidence.support)
    score = centred(evidence.support, cut)
    wrong = score < 0.5
    noise = estimate(score, wrong, given, evidence.rival, num_classes)
    probability: Numbers | None = None
    contradicted: float | None = None
    if clean is not None and len(clean[1]):
        shares = priors(wrong, given, evidence.rival, num_classes)
        probability = calibrated(score, noise.matrix, shares, *clean)
        contradicted = float((clean[0].argmax(axis=1) != clean[1]).mean())
    doubt = 1 - score if probability is None else probability
    return Verdicts(
        ids=ids,
        given=given,
        suggested=np.where(wrong, evidence.rival, given),
        confidence=np.where(wrong, doubt * evidence.share, 1 - doubt),
        score=score,
        wrong=wrong,
        probability=probability,
        margin=evidence.margin,
        family=np.full(len(given), -1, dtype=np.int64) if family is None else family,
        class_names=class_names,
        noise=noise,
        contradicted=contradicted,
    )
