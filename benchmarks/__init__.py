"""Benchmarks: ratios against named references, taken in one run. Never a bare time."""
