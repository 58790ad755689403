"""Secure aggregation: the server learns the sums over a cohort, but no member's own values."""
