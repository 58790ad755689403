"""Require that every machine has the same versions of Python and of the packages."""

import platform
from collections.abc import Callable, Mapping

from fedhql.errors import ClusterError
from fedhql.storage.run_directory import package_versions


def _reader(read_packages: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    def read() -> dict[str, str]:
        return {"python": ".".join(platform.python_version_tuple()[:2])} | read_packages()

    return read


# Both functions are nested, so Ray sends them by value: a node may lack fedhql or have another
# version of it.
versions_here = _reader(package_versions)


def require_versions(
    wanted: Mapping[str, str],
    found: Mapping[str, str] | None = None,
    where: str = platform.node(),
) -> None:
    """Raise ClusterError if a wanted version is missing or differs in `found`.

    `found` and `where` describe another machine; by default they describe this one. Packages
    that are in `found` only are ignored.
    """
    found = versions_here() if found is None else found
    wrong = [
        f"{package} is {found.get(package, 'missing')} and not {expected}"
        for package, expected in wanted.items()
        if found.get(package) != expected
    ]
    if wrong:
        raise ClusterError(
            f"node {where} does not match the machine fedhql was started on: {', '.join(wrong)}; "
            "install the same versions on every node"
        )
