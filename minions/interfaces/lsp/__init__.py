"""The language server: what editors show and change of recipes while they are written."""
