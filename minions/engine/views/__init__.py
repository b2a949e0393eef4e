"""Read models for lists and pages, out of what is recorded."""
