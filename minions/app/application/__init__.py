"""The applications' door: `Minions`, `run`, `arun`, `astream`, `load`."""
