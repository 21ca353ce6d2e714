"""The core: one round of federated learning. Read this package first, in the order of docs/architecture.md."""
