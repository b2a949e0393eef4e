"""Models: providers, wire formats, structured output, prices."""
