"""Static analysis of recipes: upper bounds of calls and spending, rights, pictures."""
