"""The engines that compute a run, message engine and compiled engine, and the choice of one."""
