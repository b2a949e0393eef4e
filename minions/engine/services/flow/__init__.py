"""Flow control of model calls: per server limits, waiting calls, circuit breaker."""
