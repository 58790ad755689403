"""Files on disk: atomic writes, locks, checkpoints, record files and the run directory."""
