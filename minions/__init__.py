"""Minions: reliable, cheap, typed steps for LLM agents."""
