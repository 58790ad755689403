"""Load a policy that was exported, or the agent that a member has trained."""

from pathlib import Path

from fedhql.policy import Policy
from fedhql.policy import load_policy as load_exported
from fedhql.storage.run_directory import member_home


def load_policy(directory: Path | str) -> Policy:
    """Load what `fedhql export` wrote, or the trained agent in the home of a member.

    Raise RunDirectoryError if the directory has neither, AgentRefused if the member's agent was not
    kept or only its owner can read it.
    """
    if (home := member_home(Path(directory))) is None:
        return load_exported(directory)
    # Imported here: an exported policy needs NumPy alone.
    from fedhql.engines.kept_agents import kept_agents

    agent = kept_agents(home)
    return agent.policy(agent.default)
