"""The experiment file: its sections, overrides, arms, presets, and errors in one line each."""
