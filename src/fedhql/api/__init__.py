"""The Python interface: `federate`, `study`, `load` and `Result`. The command line calls it."""
