"""Interfaces for people and programs: command line, server, library, settings and wiring."""
