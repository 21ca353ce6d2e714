"""Core of the simulator: one round of federated learning. Read it first, in the order of docs/architecture.md."""
