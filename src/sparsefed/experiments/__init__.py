"""Every table, figure and text claim of the paper as data, and what runs it: grids, cells, results, verdicts."""
