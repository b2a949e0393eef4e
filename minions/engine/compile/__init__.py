"""Compiles a recipe to a graph of steps, and plans it without running: templates are compiled
once.
"""
