"""The tables of all keys of the recipe language."""
