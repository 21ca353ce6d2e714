"""Fuzzing targets: hostile input for every door of SparseFed."""
