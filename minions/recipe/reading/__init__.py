"""From checked mappings to an `AgentRecipe`, one module for each part of a recipe."""
