"""One run of a recipe, from its first step to its result."""
