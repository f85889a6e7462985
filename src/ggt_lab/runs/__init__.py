"""Training runs: the one training loop, races, long runs, and the files that hold their results."""
