"""Sweeps: many configs run as cells, each identified by its config, in several processes, resumable, never run twice.

    cells.py    a config as a cell with a key, its twins without attackers, and running one
    plan.py     which runs are needed, in which order, and which attack a search settles on
    runner.py   runs what is missing of plans, by pool.py and worker.py
    ledger.py   the results as lines of JSON
    sweep.py    `sparsefed.sweep`: a list of configs, or a grid over one

The package does not depend on the paper. It imports nothing: a worker must be running, and bound to its parent, before
it starts to load torch.
"""
