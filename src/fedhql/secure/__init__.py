"""Secure aggregation: a server learns the sums over a cohort, and no member's own values."""
