"""Adapters of models: providers, wire formats, structured output, prices."""
