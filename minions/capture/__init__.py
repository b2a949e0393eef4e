"""From recorded runs to a recipe: where each value came from, and which steps give it again."""
