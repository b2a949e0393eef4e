"""Pictures of a recipe's steps: what is shown, where it stands, and a writer for each format."""
