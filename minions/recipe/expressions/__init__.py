"""`{{ templates }}` and conditions: compiled once, evaluated over values. Knows no YAML."""
