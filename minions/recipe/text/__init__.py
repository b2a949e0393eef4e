"""Parses YAML text into checked mappings that know their place in the text."""
