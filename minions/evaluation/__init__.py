"""Evaluations: how often a recipe answers cases with known answers as it should, and at what cost.

What an evaluation asks, how outputs are scored and what the figures say. What runs it is elsewhere.
"""
