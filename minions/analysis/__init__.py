"""What can be said of a recipe without running it: bounds, spending, rights, pictures."""
