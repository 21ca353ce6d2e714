"""The certificate of a config or a run: what `theory` needs is read from it, and what comes out is put in words.

Nothing here is a bound by itself: the bounds are in `theory`, numbers in and numbers out. This package says which
numbers go in, where each comes from (`Assumption`), and refuses what the theory does not cover.
"""

from __future__ import annotations

from sparsefed.commands.certify.certificate import Certificate, certify
from sparsefed.commands.certify.measured_convergence import Convergence, measure_convergence
from sparsefed.commands.certify.options import CertificateOptions

__all__ = ["Certificate", "CertificateOptions", "Convergence", "certify", "measure_convergence"]
