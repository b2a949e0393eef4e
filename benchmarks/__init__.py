"""What Minions costs, as ratios within one run: `python benchmarks/run.py`."""
