"""How a server runs its federation over the network: the [service] section of its file."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt


class ServiceSettings(BaseModel):
    """Who may take part, how long anybody is waited for, and what is tolerated."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mode: Literal["rounds", "continuous"] = "rounds"
    """Algorithm 1, all in step; or members learn all the time and the server has its own clock."""
    members: tuple[str, ...] = ()
    """Their names; empty: whoever has a certificate of this authority."""
    start_with: PositiveInt = 2
    """Members that must have come before the first round."""
    quorum: PositiveInt = 2
    """Usable answers an exchange needs; below it the server asks again, and waits."""
    exchange_deadline_seconds: PositiveFloat = 30.0
    """Whoever has not answered by then is left out of the exchange."""
    learning_deadline_seconds: PositiveFloat = 3_600.0
    """Likewise for a self-learning phase (rounds); and, once some have finished, for a quorum."""
    return_seconds: PositiveFloat = 60.0
    """How long a server that was started again waits for the members it had, and one that has
    finished for those who are away; they look for it every half minute at least."""
    catch_up_improvements: PositiveInt = 256
    """The last so many are kept for members that were away; older ones they skip, and say so."""
    value_bound: float = Field(1e6, gt=0, le=1e30)
    """An answer with a larger value is refused, as one with NaN or of the wrong shape is. Not with
    secure aggregation, which has federation.secure_value_bound."""
    quarantine_after: PositiveInt = 3
    """Refused answers in a row."""
    evaluate_every_rounds: NonNegativeInt = 1
    """The server plays each member's greedy policy, by asking; 0: never."""
    round_interval_seconds: PositiveFloat = 10.0
    """Between two rounds (continuous)."""
    chunk_env_steps: PositiveInt = 500
    """A member looks for questions after each (continuous)."""
    most_states: PositiveInt = 65_536
    """In one batch."""
    most_message_bytes: PositiveInt = 16 * 1024 * 1024
    """From a member."""
    most_messages_per_second: PositiveFloat = 1_000.0
    """From one member, on average; twice as many at once."""
    keepalive_seconds: PositiveFloat = 20.0
    """A connection that is silent so long is asked whether it is alive, and given as long again."""
