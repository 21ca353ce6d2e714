"""PINE: the draft's vectors byte for byte, a naive twin for every step, and nothing false that passes."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.reports import Reports
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure aggregation is the extra sparsefed[secure]")

from sparsefed.core.errors import ConfigError
from sparsefed.secure import codec, pine, proof
from sparsefed.secure import field as fields
from sparsefed.secure.circuit import SMALL, Circuit, circuit_for, largest_bound
from sparsefed.secure.field import FIELD32, FIELD64, FIELDS, Field, RejectedReport
from sparsefed.secure.forgery import wrapping
from sparsefed.secure.xof import Xof
from tests.support import pine_reference as naive

BOTH = pytest.mark.parametrize("field", [FIELD32, FIELD64], ids=lambda field: field.name)
KEY = bytes(range(32))


def vectors() -> list[Path]:
    place = Path(os.environ.get("SPARSEFED_DATA", "")) / "pine"
    return sorted(place.glob("Pine*HmacSha256Aes128_*.json")) if "SPARSEFED_DATA" in os.environ else []


def draft_circuit(v: dict[str, Any]) -> Circuit:
    sizes = v["dimension"], v["l2_norm_bound"], v["chunk_length"], v["chunk_length_norm_equality"]
    checks = v["num_wr_checks"], v["num_wr_successes"], v["alpha"]
    return Circuit(FIELDS[v["field"].lower()], *sizes, v["proofs"], v["proofs_norm_equality"], *checks)


@pytest.mark.skipif(not vectors(), reason="the draft's vectors are not there: put them into $SPARSEFED_DATA/pine")
def test_there_are_vectors_of_both_fields() -> None:
    names = [path.name[:6] for path in vectors()]
    assert names.count("Pine32") == 8 and names.count("Pine64") == 8


@pytest.mark.skipif(not vectors(), reason="the draft's vectors are not there: put them into $SPARSEFED_DATA/pine")
@pytest.mark.parametrize("path", vectors(), ids=lambda path: path.stem)
def test_vectors_of_the_draft_byte_for_byte_in_both_directions(path: Path) -> None:
    v = json.loads(path.read_text())
    circuit, key = draft_circuit(v), bytes.fromhex(v["verify_key"])
    out: tuple[list[Any], list[Any]] = ([], [])
    for report in v["prep"]:
        nonce, wire = bytes.fromhex(report["nonce"]), [bytes.fromhex(share) for share in report["input_shares"]]
        values = np.rint(np.array(report["measurement"]) * 2 ** v["num_frac_bits"]).astype(np.int64)
        made = pine.shard(circuit, values, nonce, bytes.fromhex(report["rand"]))
        assert codec.encode_public(made.public).hex() == report["public_share"]
        assert [codec.encode_leader(circuit, made.leader), codec.encode_helper(made.helper)] == wire
        public = codec.decode_public(bytes.fromhex(report["public_share"]))
        shares = codec.decode_leader(circuit, wire[0]), codec.decode_helper(wire[1])
        done = [pine.prepare(circuit, key, server, nonce, public, shares[server]) for server in (0, 1)]
        assert [codec.encode_verifier(circuit, answer).hex() for _, answer in done] == report["prep_shares"][0]
        theirs = [codec.decode_verifier(circuit, bytes.fromhex(text)) for text in report["prep_shares"][0]]
        assert pine.decide(circuit, theirs).hex() == report["prep_messages"][0]
        for server, (prepared, _) in enumerate(done):
            share = pine.finish(prepared, bytes.fromhex(report["prep_messages"][0]))
            assert circuit.field.encode(share).hex() == "".join(report["out_shares"][server])
            out[server].append(share)
    totals = [pine.aggregate(circuit.field, circuit.d, shares) for shares in out]
    assert [circuit.field.encode(total).hex() for total in totals] == v["agg_shares"]
    assert (pine.unshard(circuit.field, totals) / 2 ** v["num_frac_bits"]).tolist() == v["agg_result"]


# --- steps against their naive twins ---


def numbers(field: Field) -> st.SearchStrategy[int]:
    q = field.modulus
    edges = st.sampled_from([0, 1, 2, q - 1, q - 2, q // 2, q // 2 + 1, 2**20, 2**31, (2**32 - 1) % q, 2**32 % q])
    return edges | st.integers(0, q - 1)


@BOTH
@given(data=st.data())
@settings(max_examples=40)
def test_arithmetic(field: Field, data: st.DataObject) -> None:
    q = field.modulus
    pairs = data.draw(st.lists(st.tuples(numbers(field), numbers(field)), min_size=1, max_size=40))
    a, b = ([pair[side] for pair in pairs] for side in (0, 1))
    x, y = field.of(a), field.of(b)
    assert field.add(x, y).tolist() == [(s + t) % q for s, t in pairs]
    assert field.sub(x, y).tolist() == [(s - t) % q for s, t in pairs]
    assert field.mul(x, y).tolist() == [s * t % q for s, t in pairs]
    assert field.total(x) == sum(a) % q
    assert field.powers(a[0], 5).tolist() == [pow(a[0], k, q) for k in range(5)]
    assert field.decode(field.encode(x), "it").tolist() == a
    signed = field.to_signed(x)
    assert [int(v) % q for v in signed] == a and bool((np.abs(signed.astype(object)) <= q // 2).all())
    assert field.from_signed(signed).tolist() == a
    assert fields.evaluated(field, x, b[0]).tolist() == [naive.value_at(field.name, a, b[0])]


@BOTH
@given(data=st.data(), log=st.integers(0, 4))
@settings(max_examples=25)
def test_transforms(field: Field, data: st.DataObject, log: int) -> None:
    size = 1 << log
    values = data.draw(st.lists(numbers(field), min_size=size, max_size=size))
    coefficients = fields.interpolated(field, field.of(values))
    assert coefficients.tolist() == naive.interpolate(field.name, values)
    assert fields.values_at_roots(field, coefficients, size).tolist() == values
    longer = field.of([*values, *values, 5])
    points = naive.roots(field.name, size)
    at = [naive.value_at(field.name, longer.tolist(), w) for w in points]
    assert fields.values_at_roots(field, longer, size).tolist() == at
    t = data.draw(numbers(field))
    if pow(t, size, field.modulus) == 1:
        with pytest.raises(RejectedReport, match="unlucky"):
            fields.lagrange(field, size, t)
    else:
        units = [naive.interpolate(field.name, [int(i == k) for i in range(size)]) for k in range(size)]
        assert fields.lagrange(field, size, t).tolist() == [naive.value_at(field.name, unit, t) for unit in units]


@BOTH
@given(data=st.data(), columns=st.integers(1, 20), calls=st.integers(1, 7), proofs=st.integers(1, 3))
@settings(max_examples=25)
def test_proofs(field: Field, data: st.DataObject, columns: int, calls: int, proofs: int) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    d, size = (calls - 1) * columns + int(draw.integers(1, columns + 1)), naive.points_for(calls)
    assert proof.points_for(calls) == size
    x = [int(v) for v in draw.integers(0, field.modulus, d, dtype=np.uint64)]
    seeds = field.of([int(v) for v in draw.integers(0, field.modulus, proofs * columns, dtype=np.uint64)])
    seeds = seeds.reshape(proofs, columns)
    padded = [*x, *([0] * ((size - 1) * columns - d))]
    rows = [padded[k * columns : (k + 1) * columns] for k in range(size - 1)]
    made = proof.prove_squares(field, field.of(x), seeds, size)
    for seed, polynomial in zip(seeds, made, strict=True):
        assert polynomial.tolist() == naive.gadget(field.name, [seed.tolist(), *rows], pairs=False)
    if columns % 2 == 0:
        wires = field.of([v for row in [seeds[0].tolist(), *rows] for v in row]).reshape(size, columns)
        expected = naive.gadget(field.name, wires.tolist(), pairs=True)
        assert proof.prove_products(field, wires).tolist() == expected


@BOTH
@given(d=st.integers(1, 40), checks=st.integers(1, 9), seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_wraparound_sums(field: Field, d: int, checks: int, seed: int) -> None:
    circuit = Circuit(field, d, 5, 3, 2, 1, 1, checks, checks)
    twin = naive.Pine(field.name, d, 5, 3, 2, proofs=1, norm_proofs=1, checks=checks, successes=checks, alpha=8.7)
    x = [int(v) for v in np.random.default_rng(seed).integers(0, field.modulus, d, dtype=np.uint64)]
    x[0] = (0, 1, field.modulus - 1, field.modulus // 2, field.modulus // 2 + 1)[seed % 5]
    key = bytes([seed % 256] * 32)
    assert pine.wraparound_results(circuit, field.of(x), key).tolist() == twin.dots(x, key)


def test_wraparound_sums_of_several_pieces() -> None:
    """More coordinates than a tile, and more rows than one piece of the stream."""
    d = 4 * 1024 * 3 + 5
    circuit = Circuit(FIELD32, d, 5, 3, 200, 1, 1, 5, 5)
    twin = naive.Pine("field32", d, 5, 3, 200, proofs=1, norm_proofs=1, checks=5, successes=5, alpha=8.7)
    x = [int(v) for v in np.random.default_rng(0).integers(0, FIELD32.modulus, d, dtype=np.uint64)]
    assert pine.wraparound_results(circuit, FIELD32.of(x), KEY).tolist() == twin.dots(x, KEY)
    whole = Xof(KEY, b"tag").bytes(1000)
    assert b"".join(bytes(rows) for rows in Xof(KEY, b"tag").rows(10, 100)) == whole
    assert Xof(KEY, b"tag").vector(FIELD32, 250).tolist() == naive.elements("field32", naive.stream(KEY, b"tag"), 250)


def test_a_stream_leaves_out_words_above_the_modulus() -> None:
    many = 20_000  # one word in 4096 is too large
    words = np.frombuffer(Xof(KEY, b"tag").bytes(4 * many), "<u4")
    below = words[words < FIELD32.modulus]
    assert len(below) < many
    assert np.array_equal(Xof(KEY, b"tag").vector(FIELD32, len(below)), below)


@BOTH
@given(
    d=st.integers(1, 12),
    chunk=st.integers(1, 40),
    norm_chunk=st.integers(1, 6),
    checks=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=6)
def test_a_whole_report_and_both_answers(
    field: Field, d: int, chunk: int, norm_chunk: int, checks: int, data: st.DataObject
) -> None:
    bound, proofs, norm_proofs = (
        data.draw(st.integers(1, 60)),
        data.draw(st.integers(1, 2)),
        data.draw(st.integers(1, 2)),
    )
    values = data.draw(st.lists(st.integers(-bound // 4, bound // 4), min_size=d, max_size=d))
    given_: dict[str, Any] = {
        "proofs": proofs,
        "norm_proofs": norm_proofs,
        "checks": checks,
        "successes": checks,
        "alpha": 8.7,
    }
    circuit = Circuit(field, d, bound, chunk, norm_chunk, **given_)
    twin = naive.Pine(field.name, d, bound, chunk, norm_chunk, **given_)
    nonce, random = data.draw(st.binary(min_size=16, max_size=16)), np.random.default_rng(d + chunk).bytes(224)
    if sum(v * v for v in values) > bound**2:
        with pytest.raises(ConfigError, match="above the bound"):
            pine.shard(circuit, np.array(values), nonce, random)
        return
    public, leader, helper = twin.shard(values, nonce, random)
    report = pine.shard(circuit, np.array(values), nonce, random)
    assert codec.encode_public(report.public) == public
    assert codec.encode_leader(circuit, report.leader) == leader
    assert codec.encode_helper(report.helper) == helper
    answers = []
    shares: list[pine.LeaderShare | pine.HelperShare] = [report.leader, report.helper]
    for server, share in enumerate(shares):
        measurement, proofs_share = (part.tolist() for part in pine._expanded(circuit, share))
        blinds = [share.wr_blind, share.joint_blind]
        expected = twin.prepare(KEY, server, nonce, public, measurement, proofs_share, blinds)
        _, answer = pine.prepare(circuit, KEY, server, nonce, report.public, share)
        assert codec.encode_verifier(circuit, answer) == expected
        answers.append(answer)
    assert twin.is_valid(answers[0].answers.tolist(), answers[1].answers.tolist())
    pine.decide(circuit, answers)


# --- the parameters ---


@pytest.mark.parametrize("d", [1, 2, 7, 1000, 95_366])
@BOTH
def test_the_chosen_circuit_is_about_the_shortest(field: Field, d: int) -> None:
    circuit = circuit_for(field, d, largest_bound(field))
    small: dict[str, Any] = dict(SMALL) if field.size == 4 else {}
    chunks = range(1, 300)
    other = min(Circuit(field, d, circuit.bound, c, 1, 1, 1, **small).rest_proof for c in chunks)
    assert circuit.rest_proof <= other * 1.02
    best = min(c + 2 * proof.points_for(-(-d // c)) - 1 for c in range(1, min(d, 2000) + 1))
    assert circuit.norm_proof <= best * 1.02


@BOTH
def test_bounds_that_could_wrap_around_are_refused(field: Field) -> None:
    most = largest_bound(field)
    circuit_for(field, 10, most)
    with pytest.raises(ConfigError, match="too large for"):
        circuit_for(field, 10, most + 1)


def small_ball(units: int, coordinates: int) -> float:
    """Pr(|sum of so many z| <= units), z = -1, 0, 1 with probability 1/4, 1/2, 1/4: half the sum of two fair coins."""
    n = 2 * coordinates
    near = (math.comb(n, coordinates + k) for k in range(-units, units + 1) if 0 <= coordinates + k <= n)
    return float(sum(near) / 2**n)


def test_no_vector_of_equal_coordinates_that_wraps_around_passes_a_check_more_often_than_not() -> None:
    """With w^2 <= q / 15 and a square of q: n coordinates of sqrt(q / n), of which w holds floor(w sqrt(n / q))."""
    for n in range(1, 250):
        assert small_ball(math.floor(math.sqrt(n / 15)), n) <= 0.5
    assert small_ball(math.floor(math.sqrt(4 / 4)), 4) > 0.7  # w^2 = q / 4 would not do


def test_reports_are_as_short_as_promised() -> None:
    for d, most in ((95_366, 0.06), (6_567_488, 0.005)):
        circuit = circuit_for(FIELD32, d, largest_bound(FIELD32))
        assert codec.upload_bytes(circuit) / (4 * d) - 1 <= most


# --- false reports ---


@BOTH
def test_forged_reports_are_refused_and_honest_ones_accepted(field: Field) -> None:
    """Some hundred of each; `python -m fuzz.reports` sends ten thousand."""
    reports = Reports(circuit_for(field, 24, largest_bound(field)), seed=3)
    reports.forge(140)
    reports.honest(60)
    assert reports.wrong == []
    assert reports.counts["wraparound", "refused"] == 20 and reports.counts["honest", "accepted"] > 60


def test_the_wraparound_that_the_draft_allows_does_pass_there() -> None:
    """Our stricter bound is needed: with B = 16 384 in field32, four times that norm passes every check."""
    loose = Circuit(FIELD32, 200, 1024, 37, 15, 5, 2)
    object.__setattr__(loose, "bound", 16_384)  # past the check of the constructor
    vector = wrapping(loose, np.ones(200, np.int64))
    norm = math.sqrt(pine.squared_norm(vector))
    assert norm > 3.9 * loose.bound
    claims = pine.Claims(
        lambda circuit, values: pine.norm_claim(circuit, _square(values), _left(circuit, values)), pine.wraparound_bits
    )
    report = pine.shard(loose, vector, bytes(16), bytes(range(224)), claims)
    both = [pine.prepare(loose, KEY, s, bytes(16), report.public, (report.leader, report.helper)[s])[1] for s in (0, 1)]
    pine.decide(loose, both)
    with pytest.raises(ConfigError, match="too large"):
        Circuit(FIELD32, 200, 16_384, 37, 15, 5, 2)


def _square(values: Any) -> int:
    return pine.squared_norm(values) % FIELD32.modulus


def _left(circuit: Circuit, values: Any) -> int:
    return circuit.square - _square(values)


def test_wrapping_vectors_have_a_square_that_is_a_multiple_of_the_modulus() -> None:
    for field in (FIELD32, FIELD64):
        circuit = circuit_for(field, 30, largest_bound(field))
        vector = wrapping(circuit, np.arange(30))
        assert sum(int(v) ** 2 for v in vector) % field.modulus == 0 and vector.any()


def test_challenges_must_follow_from_both_shares() -> None:
    """A device that lies about the hash of the other share could choose its challenges."""
    circuit = circuit_for(FIELD32, 8, 100)
    report = pine.shard(circuit, np.ones(8, np.int64), bytes(16))
    done = [pine.prepare(circuit, KEY, s, bytes(16), report.public, (report.leader, report.helper)[s]) for s in (0, 1)]
    message = pine.decide(circuit, [answer for _, answer in done])
    assert pine.finish(done[0][0], message) is done[0][0].out_share
    with pytest.raises(RejectedReport, match="challenges"):
        pine.finish(done[0][0], bytes(64))


def test_messages_of_the_wrong_length_or_with_impossible_elements_are_refused() -> None:
    circuit = circuit_for(FIELD32, 8, 100)
    report = pine.shard(circuit, np.ones(8, np.int64), bytes(16))
    leader = codec.encode_leader(circuit, report.leader)
    for data in (b"", leader[:-1], leader + b"x", b"\xff" * 4 + leader[4:]):
        with pytest.raises(RejectedReport, match="leader share"):
            codec.decode_leader(circuit, data)
    for decode in (codec.decode_public, codec.decode_helper):
        with pytest.raises(RejectedReport, match="bytes"):
            decode(bytes(127))
    with pytest.raises(RejectedReport, match="answer"):
        codec.decode_verifier(circuit, b"\xff" * (4 * circuit.verifier + 64))
    with pytest.raises(RejectedReport, match="elements"):
        pine.prepare(circuit, KEY, 0, bytes(16), report.public, report.leader._replace(proofs=report.leader.proofs[1:]))
