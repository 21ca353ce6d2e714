"""Every table, figure and text claim of the paper as data, and what runs it: grids, cells, results, verdicts.

    exhibits/NAME.toml  what is asked, the grid, its scales, its claims, its chart      (record.py, reading.py)
    paper/NAME.json     the paper's numbers, and where they stand
    grid.py, plan.py    combinations of the axes -> configs -> cells, known by their config alone
    runner.py           runs the cells in workers (pool.py, worker.py, cells.py) and keeps the results (results.py)
    claims.py           what the paper says, and whether it holds here
    outcome.py, charts.py, page.py, view.py   for a reader

Imports nothing: a worker must be up, and bound to its parent, before it begins to load torch.
"""
