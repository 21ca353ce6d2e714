"""What can be promised of the panel's defenses, in the certificate's own words; or why nothing can."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparsefed import config as configs
from sparsefed.commands import certify as certificate
from sparsefed.commands.audit.findings import AuditResult, equipped
from sparsefed.core import toml
from sparsefed.core.errors import SparseFedError
from sparsefed.results.matrix import NO_ATTACK

ALWAYS_ASKED = ("sparsefed",)
SENTENCES = 2  # of a certificate's verdict: the number, and what it is worth


def certificates(outcome: AuditResult) -> dict[str, str]:
    """For the recommended defense and for SparseFed."""
    best = outcome.recommendation
    wanted = dict.fromkeys([*([best.name] if best else []), *ALWAYS_ASKED])
    there = [name for name in wanted if any(name == member.name for member in outcome.panel.members)]
    return {name: _promised(outcome, name) for name in there}


def _promised(outcome: AuditResult, name: str) -> str:
    """The certificate of the audited config with this defense, with the model trained without attackers if there is
    one."""
    config = equipped(outcome.grid, outcome.measured, outcome.member(name))
    calm = outcome.measured.records.get((name, NO_ATTACK))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recommended.toml"
        file.write_text(toml.dumps(configs.dump(config)), encoding="utf-8")
        try:
            found = certificate.certify(file, trained=calm[0].folder if calm else None)
        except SparseFedError as error:
            return f"None: {_plain(str(error), file)}."
    return " ".join(_told(certificate.verdict(found)))


def _told(verdict: list[str]) -> Iterator[str]:
    yield from verdict[1 : 1 + SENTENCES]
    yield from (sentence for sentence in verdict if sentence.startswith("Certified accuracy"))


def _plain(sentence: str, file: Path) -> str:
    return sentence.replace(f"{file}: ", "").rstrip(".")
