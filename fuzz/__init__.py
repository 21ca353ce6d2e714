"""Fuzzing targets: damaged and hostile inputs, made from a seed, that may only end in success or a SparseFedError.

    python -m fuzz readers --seconds 60 --seed 0
    python -m fuzz readers --cases 10000
    python -m fuzz readers --seed 0 --case 4711   # that one again, in this process, with its traceback

A target is a function `case(generator) -> (description, call)`. A group of targets is a module with a dict TARGETS of
them and a function `kept()` that yields cases worth repeating every time; it needs one line in `fuzz.driver.GROUPS`.
"""
