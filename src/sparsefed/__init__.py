"""SparseFed: a test bench and a deployable defense for poisoned federated learning."""
