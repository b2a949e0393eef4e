"""What a command prints: text, JSON, progress, reports."""
