"""What the tool does with runs: audit, tune, choose k, certify, reproduce; each also a Python function."""
