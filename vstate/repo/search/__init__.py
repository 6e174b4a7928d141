"""Search history: blame and bisection."""
