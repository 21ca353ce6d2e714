"""Certificates by votes of groups drawn at random: with a confidence, simultaneous over all test points.

Cao, Jia, Gong 2021, Provably Secure Federated Learning against Malicious Clients (FLCert-P in Cao et al. 2022): a model
could be trained on every k of the n devices, and the label is that with most of all C(n, k) votes. Some N of them are
drawn at random and trained, so their votes are a sample of all. What is certified is the label of the vote over *all*
subsets; with probability `confidence`, over the draw, all certificates are right together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from sparsefed.core.errors import require
from sparsefed.theory.ensembles import clean_share
from sparsefed.theory.votes import IntArray, Labels, tally

CONFIDENCE = 0.999  # as in the paper's experiments

FloatArray = npt.NDArray[np.float64]


def random_subsets(
    votes: Labels, classes: int, *, devices: int, subset: int, confidence: float = CONFIDENCE
) -> IntArray:
    """Return how many compromised devices each prediction bears (Cao et al. 2021, Theorem 1); -1: not even the label.

    With m devices compromised, C(n-m, k) of the C(n, k) subsets are clean and vote as before. So y, which has at least
    a share p_y of all votes, keeps p_y - q, where q is the share of spoilt subsets, and any c has at most p_c + q:

        y stays the winner if  p_y - p_c  >  2 q = 2 (1 - C(n-m, k) / C(n, k)).

    p_y and p_c are bounded by Clopper and Pearson (1934), each with an error of (1 - confidence) / (points * classes),
    so that by Bonferroni all bounds hold together. The label is the one with most votes in the sample.

    Args:
        votes: The label that each drawn group votes for [N groups, points].
        classes: The number of labels.
        devices: n, the number of devices.
        subset: k, the devices in each group.
        confidence: The probability with which all certificates are right together.
    """
    require(0 < confidence < 1, f"confidence is {confidence}, but it is a probability: above 0 and below 1")
    counts = tally(votes, classes)
    lower, upper = clopper_pearson(counts, len(votes), (1 - confidence) / counts.size)
    points = np.arange(len(counts))
    winner = counts.argmax(1)
    own = lower[points, winner]
    upper[points, winner] = 0
    lead = own - np.minimum(upper.max(1), 1 - own)
    spoilt = np.array([2 * (1 - clean_share(devices, m, subset)) for m in range(devices - subset + 2)])
    bears: IntArray = np.searchsorted(spoilt, lead, side="left") - 1  # of an increasing list, how many are below
    return bears


def clopper_pearson(counts: IntArray, trials: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return a lower and an upper bound of each probability, each wrong with a probability of at most `error`.

    >>> lower, upper = clopper_pearson(np.array([0, 5, 10]), trials=10, error=0.025)
    >>> lower.round(3), upper.round(3)
    (array([0.   , 0.187, 0.692]), array([0.308, 0.813, 1.   ]))
    """
    some, not_all = counts > 0, counts < trials
    lower = np.where(some, betaincinv(np.maximum(counts, 1), trials - counts + 1, error), 0.0)
    upper = np.where(not_all, 1 - betaincinv(np.maximum(trials - counts, 1), counts + 1, error), 1.0)
    return lower, upper
