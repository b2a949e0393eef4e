"""What every run is given: clock, models, secrets, retry, prices, budgets, and the journal in memory."""
