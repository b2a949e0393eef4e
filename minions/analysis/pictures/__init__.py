"""Pictures of a recipe's steps: their content, their layout, and a writer for each format."""
