"""What every run is given: clock, models, secrets, retry, prices, budget, the memory journal."""
