"""What several tests share: naive twins, synthetic data, golden trajectories, processes, a browser."""
