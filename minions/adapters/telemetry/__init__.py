"""Telemetry: what is counted while recipes run, for those who watch a process."""
