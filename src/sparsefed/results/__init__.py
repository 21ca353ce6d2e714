"""What the numbers of runs mean: summaries, twins, matrices, verdicts. Draws nothing."""
