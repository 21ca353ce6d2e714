"""The certificate of a config or a run: the inputs of `theory` are read from it, and the results put into words.

The bounds themselves are in `theory`, numbers in and numbers out. This package decides which numbers go in, where each
comes from (`Assumption`), and refuses what the theory does not cover.
"""

from __future__ import annotations

from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.certification import certify
from sparsefed.commands.certify.group_certificate import VoteCertificate
from sparsefed.commands.certify.measured_convergence import Convergence, measure_convergence

__all__ = ["Certificate", "Convergence", "VoteCertificate", "certify", "measure_convergence"]
