"""Interfaces for people and programs: command line, server, workers."""
