"""The environment variables that limit numeric libraries to one thread."""

# Sums depend on the number of threads, because floating-point addition is grouped differently.
# Libraries read these variables when they are loaded. XLA reads NPROC as its number of cores.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), "1"
)
