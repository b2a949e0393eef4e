"""Loads and checks recipes: text to `AgentRecipe`. Nothing here runs, spawns or connects."""
