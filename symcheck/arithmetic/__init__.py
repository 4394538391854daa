"""Number systems in which a program can be evaluated: float64, float64 with a running bound, and balls."""
