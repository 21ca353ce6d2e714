"""Running many configs: cells known by their config alone, run by several processes, resumable, never run twice.

    cells.py            a config as a cell with a key, and the cells without attackers beside it
    plan.py             which runs are wanted, in which order, and which attack a search settles on
    runner.py           runs what is missing of plans: pool.py, worker.py, run_cell.py; clock.py says how long it takes
    ledger.py           the results as lines of JSON
    sweep.py, result.py `sparsefed.sweep`: a list of configs, or a grid over one

Knows nothing of the paper. Imports nothing: a worker must be up, and bound to its parent, before it begins to load
torch.
"""
