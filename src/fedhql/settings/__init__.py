"""Read an experiment file: its sections, overrides, arms and presets. An error is one line."""
