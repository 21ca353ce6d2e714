"""The certificates of the compared defenses, in the certificate's own words, or why there are none."""

from __future__ import annotations

from sparsefed.commands.audit.findings import AuditResult, equipped
from sparsefed.commands.certify import certify
from sparsefed.core.errors import SparseFedError
from sparsefed.results.matrix import NO_ATTACK

ALWAYS = ("sparsefed",)


def certificates(outcome: AuditResult) -> dict[str, str]:
    """Return the certificates of the recommended defense and of SparseFed, by name."""
    best = outcome.recommendation
    wanted = dict.fromkeys([*([best.name] if best else []), *ALWAYS])
    there = [name for name in wanted if any(name == member.name for member in outcome.panel.members)]
    return {name: _promised(outcome, name) for name in there}


def _promised(outcome: AuditResult, name: str) -> str:
    """Certify the audited config with this defense, for the model trained without attackers if there is one."""
    config = equipped(outcome.grid, outcome.measured, outcome.member(name))
    calm = outcome.measured.records.get((name, NO_ATTACK))
    try:
        certificate = certify(config, trained=calm[0].folder if calm else None)
    except SparseFedError as error:
        return f"None: {str(error).rstrip('.')}."
    accuracy = certificate.certified_accuracy_sentence
    return " ".join([certificate.headline, certificate.worth[0], *([accuracy] if accuracy else [])])
