"""The built-in toolsets and what they share."""
