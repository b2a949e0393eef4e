"""The configuration: its keys, where they come from, what they permit, and who is trusted."""
