"""The commands: audit, tune, choose k, certify, reproduce. Each is also a Python function."""
