"""Everything fedhql raises on purpose: mistakes a user can act on, each one line long."""


class FedHQLError(Exception):
    """Base of all errors raised on purpose; the command line prints it and exits with 2."""


class SettingsError(FedHQLError):
    """A setting is unknown, out of range or contradicts another."""


class EnvironmentRefused(FedHQLError):
    """The environment does not exist or cannot be federated."""


class AgentRefused(FedHQLError):
    """An agent breaks the black-box contract."""


class SpacesDiffer(AgentRefused):
    """Its environment has other states or actions than the federation's."""


class NoUsableAnswers(FedHQLError):
    """Not one agent gave an answer the server could use."""


class AgentsLost(FedHQLError):
    """Agents of our own, on other machines, are gone; their cell can go on with new ones."""


class ClusterError(FedHQLError):
    """A Ray cluster cannot be reached, lacks something, or its nodes do not match."""


class MemberRefused(FedHQLError):
    """A server will not have this member, or this member will not have that server."""


class RunDirectoryError(FedHQLError):
    """The output directory holds something else, or is in use."""


class CredentialsError(FedHQLError):
    """A certificate or key is missing, does not fit, or may not be used."""


class MissingExtra(FedHQLError):
    """An optional package is needed and not installed."""

    @classmethod
    def named(cls, extra: str, needed_for: str) -> "MissingExtra":
        return cls(f"{needed_for} needs an optional package: pip install 'fedhql[{extra}]'")
