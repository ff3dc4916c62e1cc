"""Each class against all others at every threshold: what ROC and precision-recall curves are drawn from."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from fedmt.reports.scores import Numbers

POINTS, FEWER = 100, 50
"""Number of points of each curve. The second applies if there are many classes, so that the page
stays small."""

MANY = 30
"""Number of classes from which on curves have fewer points."""


def operating_points(scores: Numbers, positive: Numbers, points: int) -> Numbers:
    """[points, 3]: threshold, sensitivity and 1 - specificity, from the strictest threshold to the laxest.

    scores: [N], the probabilities of the class. positive: [N], whether the sample is of the class. A sample
    is predicted as the class if its score is at least the threshold. At the first point, there are none. If
    there are more thresholds than points, those that divide both curves into similar pieces are kept. If
    there are fewer, the last one is repeated.

    >>> operating_points(np.array([0.9, 0.6, 0.2]), np.array([True, False, True]), 4).round(2).tolist()
    [[1.0, 0.0, 0.0], [0.9, 0.5, 0.0], [0.6, 0.5, 1.0], [0.2, 1.0, 1.0]]
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of each group of equal scores
    tp = np.append(0, hits.cumsum()[last])
    fp = np.append(0, (~hits).cumsum()[last])
    threshold = np.append(1.0, ranked[last])
    sensitivity, fall_out = tp / max(hits.sum(), 1), fp / max((~hits).sum(), 1)
    # The logarithm gives room to the few samples that rank first, which decide the precision of a rare class.
    along = sensitivity + fall_out + np.log1p(tp + fp) / np.log1p(len(scores))
    if len(along) > points:
        kept = np.unique(np.searchsorted(along, np.linspace(0, along[-1], points)).clip(0, len(along) - 1))
    else:
        kept = np.arange(len(along))
    kept = np.append(kept, np.full(points - len(kept), kept[-1]))
    found: Numbers = np.stack([threshold, sensitivity, fall_out], 1)[kept]
    return found


def curves(labels: Numbers, probabilities: Numbers, classes: int) -> dict[str, Any]:
    """points: the number of points of each class. values: [classes, points, 3] as uint16, with 65,535 for 1,
    in base 64."""
    points = POINTS if classes <= MANY else FEWER
    scores = probabilities.astype(np.float64)
    found = np.stack([operating_points(scores[:, k], labels == k, points) for k in range(classes)])
    packed = np.rint(found.clip(0, 1) * 65_535).astype("<u2")
    return {"points": points, "values": base64.b64encode(packed.tobytes()).decode()}
