"""Requests and responses: access, parsing, problem details."""
