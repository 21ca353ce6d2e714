"""Naive twins: every mathematical function again, with loops, from its definition, in float64.

They share no code with the library, not even the table of presets: two readings of the paper that must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Vector = list[float]

# (uncompressed mode: lr inside the buffers?, FedAvg mode: budget as a function of L, lr and local steps)
PRESETS: dict[str, tuple[bool, Callable[[float, float, int], float]]] = {
    "paper": (False, lambda clip_norm, lr, steps: clip_norm),  # noqa: ARG005
    "authors-2021-05": (True, lambda clip_norm, lr, steps: clip_norm * lr * steps),
    "authors-2021-08": (False, lambda clip_norm, lr, steps: clip_norm * lr),  # noqa: ARG005
}


def norm(row: Sequence[float]) -> float:
    total = 0.0
    for value in row:
        total += value * value
    return math.sqrt(total)


def clip(row: Sequence[float], budget: float) -> Vector:
    """row * min(1, budget / ||row||)."""
    length = norm(row)
    return [value * budget / length if length > budget else value for value in row]


def usable(row: Sequence[float]) -> bool:
    for value in row:
        if not math.isfinite(value):
            return False
    return norm(row) <= 1e30


def mean_of_clipped(rows: Sequence[Sequence[float]], budget: float) -> Vector | None:
    """The mean over the usable rows, each clipped; None if there is none."""
    kept = [clip(row, budget) for row in rows if usable(row)]
    if not kept:
        return None
    mean = [0.0] * len(kept[0])
    for row in kept:
        for i, value in enumerate(row):
            mean[i] += value / len(kept)
    return mean


def momentum(update: Vector, buffer: Vector, rho: float) -> Vector:
    return [rho * r + u for r, u in zip(buffer, update, strict=True)]


def worker_momentum(updates: Sequence[Sequence[float] | None], beta: float) -> Vector:
    """What a device sends after these rounds, of which it missed those that are None."""
    taken = [update for update in updates if update is not None]
    sent = [float(x) for x in taken[0]]
    for update in taken[1:]:
        sent = [(1 - beta) * float(x) + beta * m for x, m in zip(update, sent, strict=True)]
    return sent


def topk(x: Sequence[float], k: int) -> list[int]:
    """Ascending indices of the k largest |x_i|; of equal ones, the lowest index first."""
    chosen: list[int] = []
    for _ in range(k):
        best = -1
        for i, value in enumerate(x):
            if i not in chosen and (best < 0 or abs(value) > abs(x[best])):
                best = i
        chosen.append(best)
    return sorted(chosen)


@dataclass
class TopkMemory:
    """The server of SparseFed, a round a call."""

    d: int
    k: int
    rho: float
    feedback: str = "momentum"
    masking: str = "zero"
    momentum: Vector = field(init=False)
    memory: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.momentum, self.memory = [0.0] * self.d, [0.0] * self.d

    def step(self, update: Vector) -> Vector:
        self.momentum = momentum(update, self.momentum, self.rho)
        source = self.momentum if self.feedback == "momentum" else update
        self.memory = [w + s for w, s in zip(self.memory, source, strict=True)]
        delta = [0.0] * self.d
        for i in topk(self.memory, self.k):
            delta[i] = self.memory[i]
            self.memory[i] = 0.0
            self.momentum[i] = 0.0 if self.masking == "zero" else self.momentum[i] - delta[i]
        return delta


@dataclass
class Server:
    """SparseFed (or, with k = 0, clipping with momentum) in a mode and a preset, a round a call."""

    d: int
    k: int
    clip_norm: float
    rho: float
    mode: str
    preset: str
    local_steps: int = 1
    buffers: TopkMemory = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = TopkMemory(self.d, self.k, self.rho)

    def step(self, rows: Sequence[Sequence[float]], lr: float) -> Vector:
        """What the server subtracts; nothing, and no change of state, if no row is usable."""
        inside, fedavg_budget = PRESETS[self.preset]
        uncompressed = self.mode == "uncompressed"
        budget = self.clip_norm if uncompressed else fedavg_budget(self.clip_norm, lr, self.local_steps)
        update = mean_of_clipped(rows, budget)
        if update is None:
            return [0.0] * self.d
        if uncompressed and inside:
            return self._serve([lr * u for u in update])
        delta = self._serve(update)
        return [lr * value for value in delta] if uncompressed else delta

    def _serve(self, update: Vector) -> Vector:
        if self.k:
            return self.buffers.step(update)
        self.buffers.momentum = momentum(update, self.buffers.momentum, self.rho)
        return self.buffers.momentum


# --- column by column: trimmed mean, median, robust learning rate ----------------------------------------------------


def column_trimmed_mean(rows: Sequence[Sequence[float]], f: int) -> Vector:
    """In each coordinate: take a smallest value away f times, a largest f times, and average the rest."""
    result = []
    for j in range(len(rows[0])):
        values = [row[j] for row in rows]
        for _ in range(f):
            values.remove(min(values))
            values.remove(max(values))
        result.append(math.fsum(values) / len(values))
    return result


def column_median(rows: Sequence[Sequence[float]]) -> Vector:
    """In each coordinate: a value with as many below as above it, or the mean of the two that share the middle."""
    result = []
    for j in range(len(rows[0])):
        values = [row[j] for row in rows]
        while len(values) > 2:
            values.remove(min(values))
            values.remove(max(values))
        result.append(math.fsum(values) / len(values))
    return result


def robust_learning_rate(rows: Sequence[Sequence[float]], threshold: int) -> Vector:
    """In each coordinate: the mean, turned around unless the signs of enough more rows agree than disagree."""
    result = []
    for j in range(len(rows[0])):
        vote = 0
        for row in rows:
            if row[j] > 0:
                vote += 1
            elif row[j] < 0:
                vote -= 1
        rate = 1 if abs(vote) >= threshold else -1
        result.append(rate * math.fsum(row[j] for row in rows) / len(rows))
    return result


# --- distances: Krum, Multi-Krum, Bulyan, nearest-neighbour mixing ---------------------------------------------------


def squared_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def inner_product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def krum_scores(rows: Sequence[Sequence[float]], f: int, neighbours: int | None = None) -> list[float]:
    """Blanchard et al.: the squared distances to the n - f - 2 nearest others, in sum."""
    count = len(rows) - f - 2 if neighbours is None else neighbours
    scores = []
    for i, row in enumerate(rows):
        others = sorted(squared_distance(row, other) for j, other in enumerate(rows) if j != i)
        scores.append(math.fsum(others[:count]))
    return scores


def box_krum_scores(rows: Sequence[Sequence[float]], f: int) -> list[float]:
    """SparseFed's box: f + 2 times the farthest is taken away; what is left, the row itself with it, is summed."""
    scores = []
    for row in rows:
        left = [math.sqrt(squared_distance(row, other)) for other in rows]
        for _ in range(f + 2):
            left.remove(max(left))
        scores.append(math.fsum(left))
    return scores


def by_score(rows: Sequence[Sequence[float]], scores: Sequence[float]) -> list[Vector]:
    """The rows, lowest score first, equal scores in lexicographic order."""
    return [list(row) for _, row in sorted(zip(scores, map(list, rows), strict=True))]


def mean_of_rows(rows: Sequence[Sequence[float]]) -> Vector:
    return [math.fsum(column) / len(column) for column in zip(*rows, strict=True)]


def krum_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    return by_score(rows, krum_scores(rows, f))[0]


def box_krum_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    return by_score(rows, box_krum_scores(rows, f))[0]


def multi_krum_twin(rows: Sequence[Sequence[float]], f: int, m: int) -> Vector:
    return mean_of_rows(by_score(rows, krum_scores(rows, f))[:m])


def bulyan_selection(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """n - 2f times: Krum among the rows that are left (at least one neighbour), and that row leaves."""
    left, selected = [list(row) for row in rows], []
    for _ in range(len(rows) - 2 * f):
        scores = krum_scores(left, f, max(1, len(left) - f - 2))
        selected.append(by_score(left, scores)[0])
        left.remove(selected[-1])
    return selected


def bulyan_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    columns = [sorted(column) for column in zip(*bulyan_selection(rows, f), strict=True)]
    return [math.fsum(column[f : len(column) - f]) / (len(column) - 2 * f) for column in columns]


def bulyan_around_median_twin(rows: Sequence[Sequence[float]], f: int) -> Vector:
    selected = bulyan_selection(rows, f)
    kept, result = len(selected) - 2 * f, []
    for column in map(sorted, zip(*selected, strict=True)):
        middle = (column[(len(column) - 1) // 2] + column[len(column) // 2]) / 2
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))[:kept]
        result.append(math.fsum(nearest) / kept)
    return result


def nnm_twin(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """Each row becomes the mean of its n - f nearest; rows that tie for the last places share them equally."""
    k, mixed = len(rows) - f, []
    for row in rows:
        far = [squared_distance(row, other) for other in rows]
        limit = sorted(far)[k - 1]
        inside = [other for other, distance in zip(rows, far, strict=True) if distance < limit]
        level = [other for other, distance in zip(rows, far, strict=True) if distance == limit]
        share = (k - len(inside)) / len(level)
        mixed.append(
            [
                (math.fsum(row[c] for row in inside) + share * math.fsum(row[c] for row in level)) / k
                for c in range(len(row))
            ]
        )
    return mixed


# --- centres: geometric median, centered clipping, bucketing, ARC ----------------------------------------------------


WORD = 1 << 64


def gap(a: Sequence[float], b: Sequence[float]) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += (x - y) * (x - y)
    return math.sqrt(total)


def sum_of_distances(rows: Sequence[Sequence[float]], point: Sequence[float]) -> float:
    total = 0.0
    for row in rows:
        total += gap(row, point)
    return total


def combination(
    rows: Sequence[Sequence[float]], weights: Sequence[float], base: Sequence[float]
) -> tuple[Vector, Vector]:
    """(1 - sum of the weights) base + the weighted rows, and the squared distance of each row from that."""
    rest = 1.0
    for weight in weights:
        rest -= weight
    point = [rest * value for value in base]
    for weight, row in zip(weights, rows, strict=True):
        for j, value in enumerate(row):
            point[j] += weight * value
    return point, [gap(row, point) ** 2 for row in rows]


def weiszfeld(rows: Sequence[Sequence[float]], nu: float, steps: int, from_mean: bool = True) -> Vector:
    """z <- sum_i x_i / max(nu, |x_i - z|), divided by the sum of these weights; from the mean, or from zero."""
    d = len(rows[0])
    z = [sum(row[j] for row in rows) / len(rows) for j in range(d)] if from_mean else [0.0] * d
    for _ in range(steps):
        total, moved = 0.0, [0.0] * d
        for row in rows:
            weight = 1 / max(nu, gap(row, z))
            total += weight
            for j in range(d):
                moved[j] += weight * row[j]
        z = [value / total for value in moved]
    return z


def repeated(rows: Sequence[Sequence[float]], times: Sequence[int]) -> list[Sequence[float]]:
    """Each row as often as it weighs: what integer weights mean."""
    return [row for row, count in zip(rows, times, strict=True) for _ in range(count)]


def centered_clipping(
    rows: Sequence[Sequence[float]], centre: Sequence[float], radius: float, iterations: int
) -> Vector:
    """v <- v + the mean over i of (x_i - v) min(1, radius / |x_i - v|)."""
    v = list(centre)
    for _ in range(iterations):
        step = [0.0] * len(v)
        for row in rows:
            length = gap(row, v)
            factor = radius / length if length > radius else 1.0
            for j in range(len(v)):
                step[j] += (row[j] - v[j]) * factor / len(rows)
        v = [value + move for value, move in zip(v, step, strict=True)]
    return v


def arc(rows: Sequence[Sequence[float]], f: int) -> list[Vector]:
    """Clip to the (k+1)-th largest norm, k the largest whole number with k n <= 2 f (n - f)."""
    n, k = len(rows), 0
    while (k + 1) * n <= 2 * f * (n - f):
        k += 1
    lengths = [gap(row, [0.0] * len(row)) for row in rows]
    limit = sorted(lengths)[n - 1 - k]
    return [
        [value * (limit / length if length > limit else 1.0) for value in row]
        for row, length in zip(rows, lengths, strict=True)
    ]


def hashed(sender: int, keys: Sequence[int]) -> int:
    """A 64-bit word: each key is mixed in by SplitMix64's finaliser."""
    word = sender % WORD
    for key in keys:
        word ^= key
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
        word ^= word >> 31
    return word


def bucketing(rows: Sequence[Sequence[float]], senders: Sequence[int], keys: Sequence[int], size: int) -> list[Vector]:
    """The rows in the order of their senders' hashes, averaged `size` at a time."""
    order = sorted(range(len(rows)), key=lambda i: hashed(senders[i], keys))
    means: list[Vector] = []
    while order:
        bucket, order = order[:size], order[size:]
        means.append([sum(rows[i][j] for i in bucket) / len(bucket) for j in range(len(rows[0]))])
    return means


# --- trust: FLTrust, FoolsGold, divide and conquer, SignGuard --------------------------------------------------------


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


def mean_shift_width(points: Sequence[Sequence[float]]) -> float:
    """The bandwidth: the mean distance of a point to the n/2-th nearest, itself the first."""
    n = len(points)
    reach = min(n, max(2, n // 2)) - 1
    return math.fsum(sorted(trust_distance(p, q) for q in points)[reach] for p in points) / n


def mean_shift_climb(point: Sequence[float], points: Sequence[Sequence[float]], width: float) -> list[Vector]:
    """Where a point goes: from itself to the mean of the points within the width, until it stops."""
    path = [list(point)]
    for _ in range(300):
        near = [q for q in points if trust_distance(path[-1], q) <= width]
        path.append([math.fsum(column) / len(near) for column in zip(*near, strict=True)])
        if trust_distance(*path[-2:]) <= 1e-3 * width:
            break
    return path


def mean_shift_summits(points: Sequence[Sequence[float]], width: float) -> list[tuple[int, Vector]]:
    """For each point, how many were within the width of its last step but one, and where it ended."""
    summits = []
    for point in points:
        *_, before, end = mean_shift_climb(point, points, width)
        crowd = sum(trust_distance(before, q) <= width for q in points)
        summits.append((crowd, [round(x, 9) for x in end]))
    return summits


def mean_shift_cluster(points: Sequence[Sequence[float]]) -> set[int]:
    """Mean shift with a flat kernel, from every point; distances within 1e-10 are equal."""
    width = mean_shift_width(points) + 1e-10
    kept: list[Vector] = []
    for _, summit in sorted(mean_shift_summits(points, width), reverse=True):
        if all(trust_distance(summit, other) > width for other in kept):
            kept.append(summit)
    members: list[set[int]] = [set() for _ in kept]
    for i, point in enumerate(points):
        distances = [trust_distance(point, summit) for summit in kept]
        if min(distances) <= width:
            members[next(m for m, x in enumerate(distances) if x <= min(distances) + 1e-10)].add(i)
    return max(members, key=len)  # of equally large ones the first


def mean_shift_gaps(points: Sequence[Sequence[float]]) -> list[float]:
    """By how much each distance that the clustering compares with the bandwidth differs from it."""
    width = mean_shift_width(points)
    places = [place for point in points for place in mean_shift_climb(point, points, width + 1e-10)]
    summits = [summit for _, summit in mean_shift_summits(points, width + 1e-10)]
    pairs = [(a, b) for a in [*places, *summits] for b in points] + [(a, b) for a in summits for b in summits]
    return [abs(trust_distance(a, b) - width) for a, b in pairs]


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


# --- clusters and layers: FLAME, LASA --------------------------------------------------------------------------------


def flame_norm(row: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in row))


def flame_median(values: Sequence[float]) -> float:
    """For an even number the mean of the middle two."""
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def flame_cosine_distance(x: Sequence[float], y: Sequence[float]) -> float:
    """1 - cos(x, y) = |x / ||x|| - y / ||y|| |^2 / 2; vectors of norm 0 are alike, all others at right angles."""
    a, b = flame_norm(x), flame_norm(y)
    if a == 0 or b == 0:
        return 0.0 if a == b else 1.0
    return math.fsum((p / a - q / b) ** 2 for p, q in zip(x, y, strict=True)) / 2


def flame_component(distances: Sequence[Sequence[float]], start: int, radius: float) -> set[int]:
    """Everything that can be reached from `start` by steps no longer than the radius."""
    reached, waiting = {start}, [start]
    while waiting:
        i = waiting.pop()
        for j in range(len(distances)):
            if j not in reached and distances[i][j] <= radius:
                reached.add(j)
                waiting.append(j)
    return reached


def flame_majority(distances: Sequence[Sequence[float]]) -> list[int]:
    """The component of more than half at the least radius that has one; ties in nine digits belong to it."""
    n = len(distances)
    for radius in sorted({0.0} | {distance for row in distances for distance in row}):
        for start in range(n):
            if 2 * len(flame_component(distances, start, radius)) > n:
                return sorted(flame_component(distances, start, radius * (1 + 1e-9) + 1e-14))
    raise AssertionError("at the largest distance everything is one component")


def flame(rows: Sequence[Sequence[float]], theta: Sequence[float] | None = None) -> tuple[Vector, int]:
    """FLAME without noise, and how many it admits."""
    compared: list[Vector] = []
    for row in rows:
        compared.append(list(row) if theta is None else [t - u for t, u in zip(theta, row, strict=True)])
    admitted = flame_majority([[flame_cosine_distance(x, y) for y in compared] for x in compared])
    bound = flame_median([flame_norm(row) for row in rows])
    total = [0.0] * len(rows[0])
    for i in admitted:
        length = flame_norm(rows[i])
        factor = bound / length if length > bound else 1.0
        for j, value in enumerate(rows[i]):
            total[j] += factor * value / len(admitted)
    return total, len(admitted)


def lasa_sparsified(row: Sequence[float], sparsity: float) -> Vector:
    """The floor(sparsity d) smallest |values| set to 0; of equal ones the later go first."""
    left = list(row)
    order = sorted(range(len(row)), key=lambda j: (abs(row[j]), -j))
    for j in order[: math.floor(sparsity * len(row))]:
        left[j] = 0.0
    return left


def lasa_purity(layer: Sequence[float]) -> float:
    signs = [math.copysign(1, value) for value in layer if value != 0]
    return (1 + sum(signs) / len(signs)) / 2 if signs else 0.5


def lasa_near(values: Sequence[float], radius: float) -> set[int]:
    """Who lies within `radius` standard deviations of the median, up to rounding."""
    middle, mean = flame_median(values), math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    largest = max(abs(value) for value in values)
    return {i for i, value in enumerate(values) if abs(value - middle) <= radius * deviation + 1e-9 * largest}


def lasa(
    rows: Sequence[Sequence[float]], layers: Sequence[int], sparsity: float, lambda_n: float, lambda_s: float
) -> tuple[Vector, list[list[int]]]:
    """LASA, and whom it averages in each layer."""
    norms = [flame_norm(row) for row in rows]
    bound = sorted(norms)[(len(norms) - 1) // 2]
    updates: list[Vector] = []
    for row, length in zip(rows, norms, strict=True):
        factor = bound / length if length > bound else 1.0
        updates.append([factor * value for value in lasa_sparsified(row, sparsity)])
    result: Vector = []
    chosen: list[list[int]] = []
    start = 0
    for size in layers or [len(rows[0])]:
        parts = [update[start : start + size] for update in updates]
        by_norm = lasa_near([flame_norm(part) for part in parts], lambda_n)
        by_sign = lasa_near([lasa_purity(part) for part in parts], lambda_s)
        chosen.append(sorted(by_norm & by_sign) or list(range(len(rows))))
        for j in range(size):
            result.append(math.fsum(parts[i][j] for i in chosen[-1]) / len(chosen[-1]))
        start += size
    return result, chosen


# --- noise: DP and its accountant, CRFL, quantile clipping -----------------------------------------------------------


def noise_norm(row: Sequence[float]) -> float:
    total = 0.0
    for value in row:
        total += value * value
    return math.sqrt(total)


def noise_mean(rows: Sequence[Sequence[float]], budget: float) -> Vector | None:
    """The mean of the usable rows, each cut to the budget; None if there is none."""
    kept: list[Vector] = []
    for row in rows:
        length = noise_norm(row)
        if length <= 1e30:  # false for NaN
            kept.append([value * (budget / length) if length > budget else value for value in row])
    if not kept:
        return None
    return [math.fsum(row[i] for row in kept) / len(kept) for i in range(len(kept[0]))]


@dataclass
class DpNoise:
    """Clip, mean, noise, momentum, learning rate, noise: a round a call, with the noise z given."""

    d: int
    sigma: float
    placement: str
    clip_norm: float
    rho: float
    fedavg: bool = False
    buffer: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = [0.0] * self.d

    def step(self, rows: Sequence[Sequence[float]], lr: float, z: Sequence[float]) -> Vector:
        update = noise_mean(rows, self.clip_norm)
        if update is None:
            return [0.0] * self.d
        if self.placement == "mean":
            update = [u + self.sigma * n for u, n in zip(update, z, strict=True)]
        self.buffer = [self.rho * r + u for r, u in zip(self.buffer, update, strict=True)]
        delta = [r if self.fedavg else lr * r for r in self.buffer]
        if self.placement == "update":
            delta = [x + self.sigma * n for x, n in zip(delta, z, strict=True)]
        return delta


def crfl_model(theta: Sequence[float], delta: Sequence[float], model_norm: float, noise: Sequence[float]) -> Vector:
    """The next model: theta - delta, divided by max(1, its norm / model_norm), plus noise."""
    moved = [t - x for t, x in zip(theta, delta, strict=True)]
    divisor = max(1.0, noise_norm(moved) / model_norm)
    return [w / divisor + n for w, n in zip(moved, noise, strict=True)]


@dataclass
class QuantileClip:
    """The clip norm that follows a quantile of the norms (Andrew et al. 2021), a round a call."""

    clip_norm: float
    quantile: float
    rate: float

    def step(self, rows: Sequence[Sequence[float]]) -> Vector | None:
        """The mean of the rows cut to today's clip norm; tomorrow's is learned from how many were no longer."""
        result = noise_mean(rows, self.clip_norm)
        if result is None:
            return None
        usable = short = 0
        for row in rows:
            length = noise_norm(row)
            if length <= 1e30:
                usable += 1
                if length <= self.clip_norm:
                    short += 1
        self.clip_norm *= math.exp(-self.rate * (short / usable - self.quantile))
        return result


# Privacy. Phi is the standard normal distribution function.


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Of one Gaussian release whose mean moves by mu standard deviations (Balle and Wang 2018, Theorem 8)."""
    return normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal_cdf(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon with that delta, by bisection."""
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    if gaussian_delta(mu, low) <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def sampled_delta(mu: float, share: float, epsilon: float, grid: int = 4000) -> float:
    """A lower bound on the delta of one round that draws a device with probability `share`, mu its full move.

    All others send 0, the device sends -L or +L: integrates max(0, p - e^epsilon q) over the two densities.
    """

    def density(x: float, centre: float) -> float:
        return math.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi)

    reach = mu / 2 + 12
    step, total = 2 * reach / grid, 0.0
    for i in range(grid):
        x = -reach + (i + 0.5) * step
        rest = (1 - share) * density(x, 0)
        p, q = rest + share * density(x, mu / 2), rest + share * density(x, -mu / 2)
        total += max(0.0, p - math.exp(epsilon) * q) * step
    return total


def binomial_tail(n: int, share: float, m: int) -> float:
    """P(X > m) for X binomial."""
    total = 0.0
    for i in range(m + 1, n + 1):
        ways = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        total += math.exp(ways + i * math.log(share) + (n - i) * math.log1p(-share))
    return total


# --- count sketch, FetchSGD, local top-k -----------------------------------------------------------------------------


Table = list[list[float]]


def tabulated_hash(i: int, high: Sequence[int], low: Sequence[int], both: Sequence[int]) -> int:
    """The 32 bits of coordinate i = a * 1024 + b."""
    a, b = divmod(i, 1024)
    return high[a] ^ low[b] ^ both[a + b]


def hashed_column(value: int, columns: int) -> int:
    """The upper 31 bits, as a fraction of 2^31, times the number of columns."""
    return int((value // 2) * columns // 2**31)


def hashed_sign(value: int) -> int:
    return -1 if value % 2 else 1


@dataclass
class SketchTwin:
    """A count sketch whose columns h[j][i] and signs s[j][i] are given as lists."""

    h: list[list[int]]
    s: list[list[int]]
    columns: int

    def sketch(self, x: Sequence[float]) -> Table:
        table = [[0.0] * self.columns for _ in self.h]
        for j in range(len(self.h)):
            for i, value in enumerate(x):
                table[j][self.h[j][i]] += self.s[j][i] * value
        return table

    def estimate(self, table: Table, i: int) -> float:
        found = sorted(self.s[j][i] * table[j][self.h[j][i]] for j in range(len(self.h)))
        return found[len(found) // 2]

    def heavy(self, table: Table, k: int) -> dict[int, float]:
        """The k largest estimates; of equal ones, the lowest index first."""
        all_of_them = [self.estimate(table, i) for i in range(len(self.h[0]))]
        order = sorted(range(len(all_of_them)), key=lambda i: (-abs(all_of_them[i]), i))
        return {i: all_of_them[i] for i in order[:k]}


@dataclass
class FetchSgdTwin:
    """The server of FetchSGD, a round a call."""

    sketch: SketchTwin
    k: int
    rho: float
    masking: str
    momentum: Table = field(init=False)
    memory: Table = field(init=False)

    def __post_init__(self) -> None:
        d = len(self.sketch.h[0])
        self.momentum, self.memory = self.sketch.sketch([0.0] * d), self.sketch.sketch([0.0] * d)

    def step(self, update: Sequence[float]) -> Vector:
        h, s = self.sketch.h, self.sketch.s
        received = self.sketch.sketch(update)
        for j in range(len(h)):
            for b in range(self.sketch.columns):
                self.momentum[j][b] = self.rho * self.momentum[j][b] + received[j][b]
                self.memory[j][b] += self.momentum[j][b]
        delta = {i: value for i, value in self.sketch.heavy(self.memory, self.k).items() if value != 0}
        for j in range(len(h)):
            for i, value in delta.items():
                if self.masking == "zero":
                    self.momentum[j][h[j][i]] = 0.0
                    self.memory[j][h[j][i]] = 0.0
                else:
                    self.memory[j][h[j][i]] -= s[j][i] * value
        return [delta.get(i, 0.0) for i in range(len(h[0]))]


@dataclass
class LocalTopkTwin:
    """Devices with memories, a round a call: a dictionary in which who was seen last stands last."""

    k: int
    remember: int
    message_norm: float = math.inf
    memories: dict[int, Vector] = field(default_factory=dict)

    def step(self, rows: Sequence[Sequence[float]], senders: Sequence[int]) -> Vector:
        mean = [0.0] * len(rows[0])
        for row, sender in zip(rows, senders, strict=True):
            before = self.memories.get(sender, [0.0] * len(row))
            waiting = [e + u for e, u in zip(before, row, strict=True)]
            chosen = sorted(range(len(row)), key=lambda i: (-abs(waiting[i]), i))[: self.k]
            length = math.sqrt(sum(waiting[i] ** 2 for i in chosen))
            share = min(1.0, self.message_norm / length) if length > 0 else 1.0
            for i in chosen:
                mean[i] += share * waiting[i] / len(rows)
                waiting[i] -= share * waiting[i]
            self.memories[sender] = waiting
        for sender in sorted(set(senders)):
            self.memories[sender] = self.memories.pop(sender)
        while len(self.memories) > self.remember:
            del self.memories[next(iter(self.memories))]
        return mean


# --- certified accuracy of a softmax layer ---------------------------------------------------------------------------


def softmax_constants(devices: Sequence[Sequence[Vector]]) -> tuple[float, float, float, float, float]:
    """(c, column_l1, column_l2, smooth, longest) of devices that own these inputs: the worst device, term by term."""
    c = l1 = l2 = smooth = longest = 0.0
    for owned in devices:
        for x in owned:
            longest = max(longest, norm(x))
        for j in range(len(owned[0]) if owned else 0):
            c = max(c, sum(x[j] ** 2 for x in owned) / len(owned) / 4)
            l1 = max(l1, sum(sum(abs(v) for v in x) * abs(x[j]) for x in owned) / len(owned) / 2)
            l2 = max(l2, sum(norm(x) * abs(x[j]) for x in owned) / len(owned) * math.sqrt(2) / 4)
        smooth = max(smooth, largest_eigenvalue(owned) / 2 if owned else 0.0)
    return c, l1, l2, smooth, longest


def largest_eigenvalue(owned: Sequence[Vector]) -> float:
    """Of mean x x^T: power iteration from every axis."""
    size, found = len(owned[0]), 0.0
    matrix = [[sum(x[i] * x[j] for x in owned) / len(owned) for j in range(size)] for i in range(size)]
    for axis in range(size):
        v = [1.0 if i == axis else 0.0 for i in range(size)]
        for _ in range(300):
            v = [sum(row[j] * v[j] for j in range(size)) for row in matrix]
            length = norm(v)
            if length == 0:
                break
            found = max(found, length)
            v = [value / length for value in v]
    return found


def l2_distance(
    rounds: Sequence[tuple[float, float, float, float, float, float | None]], d: int, k: int | None, rho: float
) -> float:
    """How far apart two runs can be: for rounds (rate, clip norm, share, smooth, norm that no honest update exceeds,
    the longest that was measured or None)."""
    virtual = push = memory = rate_before = 0.0
    left = math.sqrt(1 - k / d) if k is not None else 0.0
    attacked = False
    for rate, clip_norm, share, smooth, free, measured in rounds:
        attacked = attacked or share > 0
        if attacked:
            apart = virtual + 2 * rate_before * memory
            bites = free > clip_norm and (measured is None or measured + smooth * apart > clip_norm)
            grows = rho > 0 or rate * smooth > 2 or bites
            replaced = min(clip_norm, free) if measured is None else min(clip_norm, free, measured)
            differ = smooth * (apart if grows else 2 * rate_before * memory) + share * (clip_norm + replaced)
            push = rho * push + min(clip_norm + replaced, differ)
            virtual += rate * push + 2 * abs(rate - rate_before) * memory
        memory = left * (memory + clip_norm)
        rate_before = rate
    return virtual + 2 * rate_before * memory if attacked else 0.0


def surely_right(
    weights: Sequence[Vector], inputs: Sequence[Vector], labels: Sequence[int], r1: float, r2: float
) -> float:
    """The share of points whose label beats every other class by more than any change within the radii can take."""
    count = 0
    for x, label in zip(inputs, labels, strict=True):
        scores = [sum(w * v for w, v in zip(row, x, strict=True)) for row in weights]
        takes = min(max(abs(v) for v in x) * r1, math.sqrt(2) * norm(x) * r2)
        count += all(scores[label] - scores[j] > takes for j in range(len(scores)) if j != label)
    return count / len(labels)


# --- augmentation ----------------------------------------------------------------------------------------------------


def splitmix(key: int, number: int) -> int:
    """The `number`-th word, from 1, of Steele, Lea and Flood's SplitMix64 started at `key`."""
    word = (key + number * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def reflected_pixel(place: int, side: int) -> int:
    """The pixel at a place on or off a row: walk there and turn round at each end."""
    at, step = 0, 1
    for _ in range(abs(place) if side > 1 else 0):
        if not 0 <= at + step < side:
            step = -step
        at += step
    return at


def moved_image(
    image: Sequence[Sequence[Sequence[int]]], down: int, right: int, angle: float, mirrored: bool
) -> list[list[list[float]]]:
    """An image through a window that is shifted, turned about its centre and mirrored; float64, bilinear."""
    height, width, channels = len(image), len(image[0]), len(image[0][0])
    cy, cx = (height - 1) / 2, (width - 1) / 2
    out: list[list[list[float]]] = []
    for i in range(height):
        out.append([])
        for j in range(width):
            across = (width - 1 - j if mirrored else j) - cx
            y = cy + (i - cy) * math.cos(angle) - across * math.sin(angle) + down
            x = cx + (i - cy) * math.sin(angle) + across * math.cos(angle) + right
            pixel = [0.0] * channels
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    weight = (1 - abs(y - row)) * (1 - abs(x - column))
                    source = image[reflected_pixel(row, height)][reflected_pixel(column, width)]
                    for c in range(channels):
                        pixel[c] += weight * source[c]
            out[i].append(pixel)
    return out


def moved_by_key(
    image: Sequence[Sequence[Sequence[int]]], key: int, crop: int, degrees: float, mirror: bool
) -> list[list[list[float]]]:
    """The same with shift, mirroring and angle drawn from a key, in this order."""
    words = [splitmix(key, number) for number in range(1, 5)]
    down, right = ((word >> 32) * (2 * crop + 1) // 2**32 - crop for word in words[:2])
    angle = math.radians(degrees) * (2 * (words[3] / 2**64) - 1)
    return moved_image(image, down, right, angle, mirror and words[2] >= 2**63)


# --- the certificate -------------------------------------------------------------------------------------------------


@dataclass
class Terms:
    """The terms of the certified radius as factors, so that a test can leave one out and see it missed."""

    replaced: float = 2.0  # attackers put in a clipped update and take one out
    coordinates: int | None = None  # on which they do; None: w
    runs: float = 2.0  # in which top-k holds back
    momentum: float = 1.0
    growth: float = 1.0


@dataclass
class Certified:
    """The certificate, a round a call, in plain numbers: D bounds the l1 distance of two runs, whoever attacks."""

    d: int
    k: int  # 0: dense
    rho: float
    terms: Terms = field(default_factory=Terms)
    D: float = 0.0
    pushed: float = 0.0  # dense: what momentum holds of the difference
    attacked: bool = False
    left: tuple[float, float] = (0.0, 0.0)  # the momentum after masking, in l1 and in l2
    memory: tuple[float, float] = (0.0, 0.0)

    def step(self, rate: float, clip_norm: float, share: float, growth: float, omega: float) -> float:
        w = min(self.d, 2 * self.k) if self.k else self.d
        on = math.sqrt(self.terms.coordinates or w)
        old_left, old_memory = self.left, self.memory
        momentum = (self.rho * old_left[0] + math.sqrt(self.d) * clip_norm, self.rho * old_left[1] + clip_norm)
        rest = math.sqrt(1 - self.k / self.d) if self.k else 0.0
        self.memory = (omega * (old_memory[0] + momentum[0]), rest * (old_memory[1] + momentum[1]))
        if share == 1:  # the round may not happen
            momentum = (max(momentum[0], old_left[0]), max(momentum[1], old_left[1]))
            self.memory = (max(self.memory[0], old_memory[0]), max(self.memory[1], old_memory[1]))
        self.left = momentum
        if self.k:
            self.left = (min(momentum[0], self.memory[0] + old_memory[0]), momentum[1])
        if share == 1:
            self.left = (max(self.left[0], old_left[0]), max(self.left[1], old_left[1]))
        self.attacked = self.attacked or share > 0
        if not self.attacked:
            return self.D
        sent = self.terms.replaced * on * share * clip_norm
        if share == 1 and not self.k:
            sent = self.terms.replaced * on * momentum[1]
        if self.k:
            kept = self.terms.momentum * self.rho * min(old_left[0], math.sqrt(w) * old_left[1])
            between = kept + old_memory[0] + self.memory[0]
            self.D += rate * (self.terms.growth * growth * self.D + sent + self.terms.runs * between)
        else:
            self.pushed = self.terms.momentum * self.rho * self.pushed + self.terms.growth * growth * self.D + sent
            self.D += rate * self.pushed
        return self.D


def furthest(d: int, k: int, rho: float, rounds: Sequence[tuple[float, float, float]]) -> float:
    """How far two models can be apart whose updates are clipped: rounds are (rate, clip norm, omega), k = 0 dense.

    The smaller of two sums: of what each round applies, and of what each round receives, at the best rate to come.
    """
    left, memory = (0.0, 0.0), (0.0, 0.0)
    applied = received = 0.0
    for t, (rate, clip_norm, omega) in enumerate(rounds):
        momentum = (rho * left[0] + math.sqrt(d) * clip_norm, rho * left[1] + clip_norm)
        seen = (memory[0] + momentum[0], memory[1] + momentum[1])
        applied += rate * (min(seen[0], math.sqrt(k) * seen[1]) if k else momentum[0])
        received += max(later for later, _, _ in rounds[t:]) * momentum[0]
        after = (omega * seen[0], math.sqrt(1 - k / d) * seen[1]) if k else (0.0, 0.0)
        left = (min(momentum[0], memory[0] + after[0]), momentum[1]) if k else momentum
        memory = after
    return 2 * min(applied, received)


# --- the choice of k -------------------------------------------------------------------------------------------------


def mass_left_by_topk(gradient: Sequence[float], k: int) -> float:
    """|g - top_k(g)|_1, summed from the smallest up."""
    chosen = set(topk(gradient, k) if k else [])
    left = [abs(value) for i, value in enumerate(gradient) if i not in chosen]
    total = 0.0
    for value in sorted(left):
        total += value
    return total


def average_lost(gradients: Sequence[Sequence[float]], k: int, as_share: bool) -> float:
    total = 0.0
    for gradient in gradients:
        lost, whole = mass_left_by_topk(gradient, k), mass_left_by_topk(gradient, 0)
        total += lost if not as_share else lost / whole if whole > 0 else 0.0
    return total / len(gradients)


def smallest_k(gradients: Sequence[Sequence[float]], omega: float, as_share: bool) -> int:
    """Try every k from 1 up."""
    k = 1
    while average_lost(gradients, k, as_share) > omega:
        k += 1
    return k


def selecting_k(
    turns: Callable[[int], Sequence[Sequence[float]]], omega: float, d: int, r: int, as_share: bool
) -> tuple[int, int]:
    """The box, line by line; k and the turns it took. k is the next whole number above, and d at most."""
    exact, delta, turn = Fraction(d, r), math.inf, 0
    while delta > omega:
        k = min(d, math.ceil(exact))
        delta = min(delta, average_lost(turns(turn), k, as_share))
        turn += 1
        if delta > omega:
            exact += Fraction(d, r)
    return k, turn


# --- detection: whom a rule that selects devices rejects --------------------------------------------------------------


def rejected_senders(weights: Sequence[float]) -> list[int]:
    """Those that get nothing, or less than half of what each would get if all got the same."""
    together = 0.0
    for weight in weights:
        together += weight
    return [i for i, weight in enumerate(weights) if weight == 0 or 2 * len(weights) * weight < together]


def detection_rates(rounds: Sequence[Sequence[tuple[bool, bool]]]) -> tuple[float | None, float | None]:
    """The share of attackers, and of honest devices, that was rejected; a device is (attacks, was rejected)."""
    rates: list[float | None] = []
    for kind in (True, False):
        devices = caught = 0
        for cohort in rounds:
            for attacks, was_rejected in cohort:
                if attacks == kind:
                    devices += 1
                    caught += was_rejected
        rates.append(caught / devices if devices else None)
    return rates[0], rates[1]
