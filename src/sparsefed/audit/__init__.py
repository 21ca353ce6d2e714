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

from sparsefed.audit.asked import Asked, ask, attacked, read
from sparsefed.audit.demo import demo, forget, introduction
from sparsefed.audit.files import save
from sparsefed.audit.machine import as_json
from sparsefed.audit.outcome import Outcome
from sparsefed.audit.page import html
from sparsefed.audit.recommend import Candidate, Recommendation, recommend
from sparsefed.audit.running import audit
from sparsefed.audit.words import limits, reasons, tables, verdict

__all__ = [
    "Asked",
    "Candidate",
    "Outcome",
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
    "save",
    "tables",
    "verdict",
]
