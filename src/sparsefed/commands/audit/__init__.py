"""An audit: every defense against the strongest attacks that a config's threat model allows, and which to use.

asked.py         what is audited, and how thoroughly
panel.py         the defenses, their parameters by stated rules
attackers.py, variants.py   the attacks, and the variants of each that every defense meets
planning.py      all of it as plans for the runner of `experiments`: cells, resumable, never run twice
running.py       calibration -> matrix -> recommendation -> sensitivity -> certificate
recommend.py     the recommendation, a pure rule
outcome.py, words.py, page.py, machine.py, files.py   for a reader
"""

from __future__ import annotations

from sparsefed.commands.audit.analysis import audit, run_audit
from sparsefed.commands.audit.demo import demo, forget, introduction
from sparsefed.commands.audit.document import html
from sparsefed.commands.audit.files import save
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.commands.audit.options import AuditOptions, ask, attacked, read
from sparsefed.commands.audit.recommend import Candidate, Recommendation, recommend
from sparsefed.commands.audit.text import limits, reasons, tables, verdict
from sparsefed.commands.audit.to_json import as_json

__all__ = [
    "AuditOptions",
    "AuditResult",
    "Candidate",
    "Recommendation",
    "as_json",
    "ask",
    "attacked",
    "audit",
    "demo",
    "forget",
    "html",
    "introduction",
    "limits",
    "read",
    "reasons",
    "recommend",
    "run_audit",
    "save",
    "tables",
    "verdict",
]
