"""The meaning of runs' numbers: summaries, twins, matrices, verdicts. This package draws nothing."""
