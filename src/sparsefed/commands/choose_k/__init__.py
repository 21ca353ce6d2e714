"""The choice of k for a model and its data: what top-k would lose, and what short runs show.

Measured is the input of the server's top-k: the mean of a cohort's clipped updates (for `local_topk` one device's
update), with honest devices only, at the first model and after some rounds of training without top-k (the config's own
clip and momentum, k = d). For each of these models n cohorts give n samples; the chosen k is the smallest that loses at
most omega of their l1 mass, on average, at *every one* of these models (`theory.choice_of_k`).

`OMEGA`, one half, is the default because of the paper's lemma on the memory: it holds at most omega / (1 - omega) of
the mass that a round can bring, so at one half never more than one round's worth.

*Departures.* The paper samples gradients of minibatches at one model. Memory and momentum, which need a k, are not
sampled; a probe run has them.

Probe runs (`--probe`) train the config's defense with several k, without attackers and, where it has an attack, with
them. Their *knee* is the smallest k of those that (1) converged and keep test accuracy, without attackers, within
`KEPT` of the best, and (2) let the attack through by at most `KEPT` more than the best of those does. What gets through
is attack accuracy, mean over the last epoch, or, if the attack is untargeted, the test accuracy it costs.
"""

from __future__ import annotations

from sparsefed.commands.choose_k.choice import ChooseKResult, Probe, knee
from sparsefed.commands.choose_k.document import sentences
from sparsefed.commands.choose_k.options import ChooseKOptions, load, with_k
from sparsefed.commands.choose_k.sampling import choose_k

__all__ = ["ChooseKOptions", "ChooseKResult", "Probe", "choose_k", "knee", "load", "sentences", "with_k"]
