"""Batches: one run for each line of a list of inputs."""
