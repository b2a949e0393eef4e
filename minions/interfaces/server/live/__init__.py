"""Runs alive in this process, and who follows them."""
