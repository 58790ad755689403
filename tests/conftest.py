"""What all tests share: hypothesis's profile, compiled programs, and what was left out."""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from _pytest.terminal import TerminalReporter
from hypothesis import settings

from fedhql.threads import ONE_THREAD

# The same examples every time and no stopwatch: a test fails for a reason or not at all.
settings.register_profile("fedhql", derandomize=True, deadline=None, database=None)
settings.load_profile("fedhql")

# One cache of compiled programs for all workers of a run and for the processes that tests start:
# workers find the variable that the process which started them has set.
_MADE_HERE = "FEDHQL_TESTS_CACHE" not in os.environ
if _MADE_HERE:
    os.environ["FEDHQL_TESTS_CACHE"] = tempfile.mkdtemp(prefix="fedhql-tests-")
_CACHE = Path(os.environ["FEDHQL_TESTS_CACHE"])
os.environ["XDG_CACHE_HOME"] = str(_CACHE)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_CACHE / "fedhql" / "jax")
# As `prepare_jax` sets it. A GPU would round factors of products, and kernels would differ.
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# One thread in every process, as in `fedhql run`: workers keep the cores busy, sums depend on the
# number of threads, and a program in the cache is compiled for so many.
os.environ.update(ONE_THREAD)
if "FEDHQL_TESTS_OPTIMISE" not in os.environ:
    # Tests compile more than they compute: without LLVM's expensive passes
    # tests/compiled/test_engine_agreement.py took 87 s instead of 124 s on 2 ARM cores.
    # `make test-slow` leaves them on.
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
        ]
    )


def pytest_sessionfinish() -> None:
    if _MADE_HERE:  # workers find a cache that the process which started them made
        shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what was left out, why, and how to get it."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        terminalreporter.write_line(f"left out: {count} tests: {reason}")
    if terminalreporter.config.option.markexpr == "not slow":
        terminalreporter.write_line("left out: slow tests: make test-slow")
