"""Agents by name, and the executor that runs steps of them."""
