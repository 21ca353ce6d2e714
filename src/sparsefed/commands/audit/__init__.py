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

from sparsefed.commands.audit.analysis import audit
from sparsefed.commands.audit.demo import demo, forget, introduction
from sparsefed.commands.audit.document import limits, reasons, verdict
from sparsefed.commands.audit.findings import Outcome
from sparsefed.commands.audit.options import Asked, ask, attacked, read
from sparsefed.commands.audit.recommend import Candidate, Recommendation, recommend

__all__ = [
    "Asked",
    "Candidate",
    "Outcome",
    "Recommendation",
    "ask",
    "attacked",
    "audit",
    "demo",
    "forget",
    "introduction",
    "limits",
    "read",
    "reasons",
    "recommend",
    "verdict",
]
