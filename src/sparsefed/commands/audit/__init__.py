"""An audit: every defense against the strongest attacks that a config's threat model allows, and which to use.

options.py          what is audited, and how thoroughly; the demo, a small audit
defense_specs.py    the defenses, their parameters by stated rules
attack_specs.py     the attacks, and the variants of each that every defense meets
time_budget.py      how long it will take, and how to fit it into a time
plan.py             all of it as plans for `sweeps`: cells, resumable, never run twice
analysis.py         `audit`: calibration -> matrix -> recommendation -> sensitivity -> certificate
findings.py         `AuditResult`, and what follows from the runs
recommend.py        the recommendation, a pure rule
document.py         the result as a document
"""

from __future__ import annotations

from sparsefed.commands.audit.analysis import audit, checked_jobs, forget, run_audit
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.commands.audit.options import AuditOptions, demo, introduction

__all__ = ["AuditOptions", "AuditResult", "audit", "checked_jobs", "demo", "forget", "introduction", "run_audit"]
