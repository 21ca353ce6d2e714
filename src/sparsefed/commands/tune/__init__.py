"""The strongest attack against a given defense: Optuna searches the parameters of a config's attack.

Every trial runs the config with other parameters of its attack; the attackers' goal, number and knowledge stay as they
are. The rules, all of them stated in the files of a search:
- a trial's *attack accuracy* is the mean over its last epoch (as `results.summary` has it), its *test accuracy* that of
  its last evaluation; a model whose test loss is not finite counts as 0 in both;
- the objective *both* (the default) rewards high values of both, *attack* of the first alone, *damage* a low test
  accuracy, which is also the objective of an attack without a goal;
- a trial is *pruned* a third or half of the way from the attack's start. With one objective: if it is behind the median
  of the finished trials at the same round (Optuna's median rule). With two, for which Optuna has none: if a trial of
  the front was then better by `GAP` in one of them and no worse than by `SLACK` in the other. Not before `WARMUP`
  finished trials, and never the config's own parameters;
- the *strongest* has the highest attack accuracy of the trials whose test accuracy is at most `stealth` below the best
  of all. Where no stealth is given: at most `STEALTH` below, or at least that of the config's own parameters. These
  are always the first trial, so the search does not end with an attack weaker than the one it was given.

The sampler: tree-structured Parzen estimators (Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization; for
two objectives Ozaki et al. 2020, Multiobjective Tree-Structured Parzen Estimator).
"""

from __future__ import annotations

from sparsefed.commands.tune.document import scatter, sentences
from sparsefed.commands.tune.optimise import tune
from sparsefed.commands.tune.space import search_space
from sparsefed.commands.tune.trials import Trial, TuneResult, progress

__all__ = ["Trial", "TuneResult", "progress", "scatter", "search_space", "sentences", "tune"]
