"""The errors that fedhql raises on purpose. Each message is one line that a user can act on."""

RESUME = "--resume (in Python: resume=True)"  # as messages name it for both


class FedHQLError(Exception):
    """Base of these errors; the command line prints the message and exits with `exit_code`."""

    exit_code = 2  # starting again will not help


class SettingsError(FedHQLError):
    """A setting is unknown, out of range or contradicts another."""


class EnvironmentRefused(FedHQLError):
    """The environment does not exist or cannot be federated."""


class AgentRefused(FedHQLError):
    """An agent breaks the black-box contract."""


class SpacesDiffer(AgentRefused):
    """An agent's environment has other states or actions than the federation."""


class NoUsableAnswers(FedHQLError):
    """No agent gave an answer that the server can use."""


class AgentsLost(FedHQLError):
    """Agents of this run on other machines are gone; their cell can continue with new agents."""


class ClusterError(FedHQLError):
    """A Ray cluster cannot be reached, lacks something, or its nodes do not match."""


class MemberRefused(FedHQLError):
    """The server refuses this member, or the member refuses the server."""


class DeviceError(FedHQLError):
    """The device that computes cannot be used or has too little memory."""

    exit_code = 1


class JournalError(FedHQLError):
    """The server cannot write its journal, because the disk is full or broken."""

    exit_code = 1


class MemberStopped(FedHQLError):
    """This member cannot go on, for a reason that lies on its own machine."""

    exit_code = 1


class RunDirectoryError(FedHQLError):
    """The output directory is in use or holds something else."""


class DiskFull(FedHQLError, OSError):
    """No space is left to write a file; an OSError too, for callers that handle any of them."""

    exit_code = 1


class CredentialsError(FedHQLError):
    """A certificate or key is missing, does not match, or may not be used."""


class MissingExtra(FedHQLError):
    """A required optional package is not installed."""

    @classmethod
    def named(cls, extra: str, needed_for: str) -> "MissingExtra":
        return cls(f"{needed_for} needs an optional package: pip install 'fedhql[{extra}]'")
