"""YAML text becomes checked mappings that know where they stand."""
