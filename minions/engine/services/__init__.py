"""The services of every run: clock, secrets, retry, prices, budget, leases, the memory journal."""
