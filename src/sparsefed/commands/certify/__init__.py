"""The certificate of a config or a run: what `certify` needs is read from it, and what comes out is told in words.

Nothing here is a bound by itself: the bounds are in `certify`, numbers in and numbers out. This package says which
numbers go in, where each comes from (`Assumption`), and refuses a protocol that the theory does not cover.
"""

from __future__ import annotations

from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.document import verdict
from sparsefed.commands.certify.options import Question, certify, check, to_train

__all__ = ["Certificate", "Question", "certify", "check", "to_train", "verdict"]
