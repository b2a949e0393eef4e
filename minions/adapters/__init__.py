"""What the outside world is reached through: providers, stores, tools."""
