"""The project's own HTTP client: connections, answers, events, addresses."""
