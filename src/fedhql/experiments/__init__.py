"""Experiments: settings, presets, and running them."""
