"""The certificate of a config or a run: what `certify` needs is read from it, and what comes out is told in words.

Nothing here is a bound by itself: the bounds are in `certify`, numbers in and numbers out. This package says which
numbers go in, where each comes from (`Assumption`), and refuses a protocol that the theory does not cover.
"""

from __future__ import annotations

from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.document import save
from sparsefed.commands.certify.options import Question, certify, certify_config, check, to_train
from sparsefed.commands.certify.text import in_short, tables, verdict
from sparsefed.commands.certify.to_json import as_json

__all__ = [
    "Certificate",
    "Question",
    "as_json",
    "certify",
    "certify_config",
    "check",
    "in_short",
    "save",
    "tables",
    "to_train",
    "verdict",
]
