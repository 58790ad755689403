"""Ray: a federation's agents as actors, and a sweep's work as tasks, over a cluster."""
