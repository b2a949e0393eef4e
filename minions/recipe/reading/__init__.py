"""Builds an `AgentRecipe` from checked mappings, one module for each part of a recipe."""
