"""The context of a run during its execution, and the view of it that one step has."""
