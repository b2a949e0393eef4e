"""From a person's words to a recipe. What is written here is a recipe again, and checked as one."""
