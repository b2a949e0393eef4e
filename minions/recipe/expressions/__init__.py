"""`{{ templates }}` and conditions: compiled once, evaluated with values. Independent of YAML."""
