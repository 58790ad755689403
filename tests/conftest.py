from hypothesis import settings

# The same examples every time and no stopwatch: a test fails for a reason or not at all.
settings.register_profile("fedhql", derandomize=True, deadline=None, database=None)
settings.load_profile("fedhql")
