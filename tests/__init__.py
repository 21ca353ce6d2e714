"""The tests: a package, so that reference twins and golden trajectories can be imported and run as modules."""
