"""Runs and suites, and their executors: local processes, Ray tasks and Ray actors."""
