"""The files that `minions init` writes. Data, not code of this package."""
