"""Stores: journals, step caches and state in SQLite, PostgreSQL and memory."""
