"""Ray clusters: the agents of a federation run as actors, and the cells of a run as tasks."""
