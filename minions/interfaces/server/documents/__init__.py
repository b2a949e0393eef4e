"""The bodies of requests and responses, as classes."""
