"""Naive twins of FLTrust, FoolsGold, DnC and SignGuard: loops from the papers' definitions, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Vector = list[float]


def trust_dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def trust_cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """0 with a vector of zeros."""
    lengths = math.sqrt(trust_dot(a, a)) * math.sqrt(trust_dot(b, b))
    return trust_dot(a, b) / lengths if lengths > 0 else 0.0


def trust_weighted(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Vector:
    return [math.fsum(w * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(len(rows[0]))]


def trust_median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


# FLTrust.


def fltrust(rows: Sequence[Sequence[float]], root: Sequence[float]) -> Vector:
    length = math.sqrt(trust_dot(root, root))
    total, trust = [0.0] * len(root), 0.0
    for row in rows:
        score = max(0.0, trust_cosine(row, root))
        if score > 0:
            trust += score
            norm = math.sqrt(trust_dot(row, row))
            for j, value in enumerate(row):
                total[j] += score * value * length / norm
    return [value / trust for value in total] if trust > 0 else total


# FoolsGold.


def foolsgold_alphas(histories: Sequence[Sequence[float]], kappa: float = 1.0) -> Vector:
    n = len(histories)
    cs = [[0.0 if i == j else trust_cosine(histories[i], histories[j]) for j in range(n)] for i in range(n)]
    v = [max(row) for row in cs]  # at least the 0 of the diagonal
    alpha = []
    for i in range(n):
        for j in range(n):
            if i != j and v[j] > v[i]:
                cs[i][j] *= v[i] / v[j]
        apart = min(1.0, max(0.0, 1 - max(cs[i])))
        alpha.append(apart if apart > 1e-9 else 0.0)
    largest = max(alpha)
    for i in range(n):
        share = min(0.99, alpha[i] / largest) if largest > 0 else 0.0
        alpha[i] = min(1.0, max(0.0, kappa * (math.log(share / (1 - share)) + 0.5))) if share > 0 else 0.0
    return alpha


class FoolsGold:
    """The server, a round a call; it forgets whom it saw longest ago, of those the lowest number."""

    def __init__(self, remember: int) -> None:
        self.remember = remember
        self.histories: dict[int, Vector] = {}
        self.seen: dict[int, int] = {}

    def step(self, round: int, sent: Mapping[int, Sequence[float]]) -> Vector:
        for sender, row in sent.items():
            old = self.histories.get(sender, [0.0] * len(row))
            self.histories[sender] = [a + b for a, b in zip(old, row, strict=True)]
            self.seen[sender] = round
        alpha = foolsgold_alphas([self.histories[sender] for sender in sent])
        while len(self.histories) > self.remember:
            oldest = min(self.histories, key=lambda sender: (self.seen[sender], sender))
            del self.histories[oldest]
        return trust_weighted(list(sent.values()), [a / len(sent) for a in alpha])


# DnC.


def dnc_centred(rows: Sequence[Sequence[float]]) -> list[Vector]:
    """Minus the mean, taken relative to the first row: a large common offset must not round the differences."""
    moved = [[value - first for value, first in zip(row, rows[0], strict=True)] for row in rows]
    mean = [math.fsum(column) / len(rows) for column in zip(*moved, strict=True)]
    return [[value - m for value, m in zip(row, mean, strict=True)] for row in moved]


def jacobi_eigen(matrix: Sequence[Sequence[float]]) -> list[tuple[float, Vector]]:
    """Eigenvalues, largest first, with their vectors, by Jacobi's rotations of a symmetric matrix."""
    size = len(matrix)
    a = [list(row) for row in matrix]
    vectors = [[float(i == j) for j in range(size)] for i in range(size)]  # columns
    for _ in range(60):
        if math.fsum(abs(a[p][q]) for p in range(size) for q in range(p)) <= 1e-16 * math.fsum(
            a[p][p] for p in range(size)
        ):
            break
        for p in range(size):
            for q in range(p + 1, size):
                if a[p][q] == 0:
                    continue
                angle = math.atan2(2 * a[p][q], a[q][q] - a[p][p]) / 2
                c, s = math.cos(angle), math.sin(angle)
                for k in range(size):
                    a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
                for k in range(size):
                    a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
                for k in range(size):
                    vectors[k][p], vectors[k][q] = (
                        c * vectors[k][p] - s * vectors[k][q],
                        s * vectors[k][p] + c * vectors[k][q],
                    )
    pairs = [(a[i][i], [vectors[k][i] for k in range(size)]) for i in range(size)]
    return sorted(pairs, key=lambda pair: -pair[0])


def dnc_directions(rows: Sequence[Sequence[float]]) -> list[tuple[float, Vector]]:
    """The right singular vectors of the centred rows with their squared singular values, from the d x d matrix."""
    c, d = dnc_centred(rows), len(rows[0])
    return jacobi_eigen([[math.fsum(row[i] * row[j] for row in c) for j in range(d)] for i in range(d)])


def dnc_scores(rows: Sequence[Sequence[float]]) -> Vector:
    v = dnc_directions(rows)[0][1]
    return [trust_dot(row, v) ** 2 for row in dnc_centred(rows)]


def dnc_good(rows: Sequence[Sequence[float]], removed: int) -> set[int]:
    """All but the `removed` highest scores, one after the other; of equal ones the last row goes first."""
    scores = dnc_scores(rows)
    good = list(range(len(rows)))
    for _ in range(removed):
        highest = max(scores[i] for i in good)
        good.remove(max(i for i in good if scores[i] >= highest - 1e-9 * max(scores)))
    return set(good)


def dnc(rows: Sequence[Sequence[float]], removed: int, views: Sequence[Sequence[int]]) -> Vector:
    """Each view is the list of coordinates that an iteration sees."""
    good = set(range(len(rows)))
    for view in views:
        good &= dnc_good([[row[j] for j in view] for row in rows], removed)
    return trust_weighted(rows, [1 / len(good) if i in good else 0.0 for i in range(len(rows))])


# SignGuard.


def trust_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def mean_shift_cluster(points: Sequence[Sequence[float]]) -> set[int]:
    """Mean shift with a flat kernel, from every point; distances within 1e-10 are equal."""
    n = len(points)
    reach = min(n, max(2, n // 2)) - 1
    width = math.fsum(sorted(trust_distance(p, q) for q in points)[reach] for p in points) / n + 1e-10
    summits: list[tuple[int, Vector]] = []
    for point in points:
        here = list(point)
        for _ in range(300):
            near = [q for q in points if trust_distance(here, q) <= width]
            there = [math.fsum(column) / len(near) for column in zip(*near, strict=True)]
            still = trust_distance(here, there) <= 1e-3 * width
            here = there
            if still:
                break
        summits.append((len(near), [round(x, 9) for x in here]))
    kept: list[Vector] = []
    for _, summit in sorted(summits, reverse=True):
        if all(trust_distance(summit, other) > width for other in kept):
            kept.append(summit)
    members: list[set[int]] = [set() for _ in kept]
    for i, point in enumerate(points):
        distances = [trust_distance(point, summit) for summit in kept]
        if min(distances) <= width:
            members[next(m for m, x in enumerate(distances) if x <= min(distances) + 1e-10)].add(i)
    return max(members, key=len)  # of equally large ones the first


def signguard_features(rows: Sequence[Sequence[float]], with_similarity: bool) -> list[Vector]:
    counts = [[sum(x > 0 for x in row), sum(x == 0 for x in row), sum(x < 0 for x in row)] for row in rows]
    most = [max(1, *(count[k] for count in counts)) for k in range(3)]
    features = [[count[k] / most[k] for k in range(3)] for count in counts]
    if with_similarity and len(rows) > 1:
        sims = []
        for i, row in enumerate(rows):
            sims.append(round(trust_median([trust_cosine(row, other) for j, other in enumerate(rows) if j != i]), 9))
        limit = trust_median(sims)
        for feature, sim in zip(features, sims, strict=True):
            feature.append(min(max(sim, 0.0), limit) / (5 * limit) if limit > 0 else 0.0)
    return [[round(x, 9) for x in feature] for feature in features]


def signguard(
    rows: Sequence[Sequence[float]], view: Sequence[int], lower: float, upper: float, with_similarity: bool = False
) -> Vector:
    """`view` is the list of coordinates whose signs are looked at; similarities see all."""
    norms = [math.sqrt(trust_dot(row, row)) for row in rows]
    median = trust_median(norms)
    signs = signguard_features([[row[j] for j in view] for row in rows], False)
    if with_similarity:
        whole = signguard_features(rows, True)
        signs = [sign + more[3:] for sign, more in zip(signs, whole, strict=True)]
    cluster = mean_shift_cluster(signs)
    good = [i for i, norm in enumerate(norms) if i in cluster and lower * median <= norm <= upper * median]
    weights = [0.0] * len(rows)
    for i in good:
        weights[i] = min(1.0, median / norms[i] if norms[i] > 0 else 1.0) / len(good)
    return trust_weighted(rows, weights)
