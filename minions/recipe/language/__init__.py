"""Every key of the recipe language, once."""
