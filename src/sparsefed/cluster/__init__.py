"""Rounds on a Ray cluster, bit for bit those of one process.

    connect.py   Ray itself: what to install, how to start or join a cluster, which failures are passing
    greeting.py  what a worker must share with the driver: data, code, processor, threads, and the bits of a probe
    worker.py    what a worker computes; a pure function of the request, so that any worker may answer any request
    requests.py  what is asked of a worker, and what it answers
    team.py      the workers: who is free, who is lost, who takes over
    engine.py    an engine whose blocks are computed by the team, in the order of the blocks
    slices.py    rows of a round that stay with the workers, a slice of columns at a time

The package imports nothing: Ray is an extra.
"""
