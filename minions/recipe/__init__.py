"""Text to a checked `AgentRecipe`: nothing here runs, spawns or connects."""
