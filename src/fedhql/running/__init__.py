"""Runs and suites, and the executors that do their work: local processes, Ray tasks, Ray actors."""
