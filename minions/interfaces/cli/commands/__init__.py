"""The commands: one module for each, or for a family of them."""
