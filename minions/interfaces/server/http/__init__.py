"""Requests and responses: access, parsing, routing, problem details, OpenAPI."""
