"""Makes models, databases, extensions and the runtime from settings; opens nothing."""
