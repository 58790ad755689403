"""Find settings of a federation that contradict each other. A check returns one line or None."""

from collections.abc import Sequence

from fedhql.federation import ATTACKS, RULES, rule_spec
from fedhql.secure.fixed_point import wrong_size
from fedhql.settings.sections import AttackSettings, ExperimentSettings, FederationSettings
from fedhql.storage.records import RESERVED_NAMES


def contradiction(federation: FederationSettings) -> str | None:
    """Check the rule's numbers, and the settings that work with some others only."""
    rule, spec = federation.rule, rule_spec(federation.rule)
    if federation.secure_aggregation and spec.from_sums is None:
        from_sums = (name for name, each in RULES.items() if each.from_sums is not None)
        return (
            f"federation.secure_aggregation with rule = {rule!r}, which needs every agent's own "
            f"values; allowed: {', '.join(map(repr, from_sums))}"
        )
    if federation.public and federation.learning_rate:
        return (
            "federation.server_environments = 'public' has no transitions to learn from; allowed: "
            f"with federation.learning_rate = 0, not {federation.learning_rate:g}"
        )
    if federation.public and spec.weighted:
        return (
            f"federation.rule = {rule!r} weighs agents by their errors at transitions, which "
            "public states do not have; allowed with 'public': rules without weights"
        )
    if federation.auditions and federation.secure_aggregation:
        return (
            f"federation.auditions is {federation.auditions}; allowed with "
            "federation.secure_aggregation: 0 (they need each agent's own values)"
        )
    if federation.auditions and federation.public:
        return (
            f"federation.auditions is {federation.auditions}; allowed with "
            "federation.server_environments = 'public': 0 (actions are fixed there)"
        )
    if federation.public and federation.random_actions:
        return (
            "federation.server_environments = 'public' acts at random anyway; allowed: "
            f"federation.random_actions = 0, not {federation.random_actions:g}"
        )
    if federation.public and federation.replay_batch:
        return (
            "federation.server_environments = 'public' has no transitions to learn from again; "
            f"allowed: federation.replay_batch = 0, not {federation.replay_batch}"
        )
    for key in dict.fromkeys(key for each in RULES.values() for key in each.numbers):
        value = getattr(federation, key)
        if key in spec.numbers and value is None:
            return f"federation.rule = {rule!r} needs federation.{key} > 0"
        # A run's settings.toml holds every default, so a default is no contradiction.
        if key not in spec.numbers and value != type(federation).model_fields[key].default:
            others = ", ".join(repr(name) for name, each in RULES.items() if key in each.numbers)
            no_lambda = f"; {rule!r} has no λ" if key == "exploration" else f", not {rule!r}"
            return f"federation.{key} is for rule = {others}{no_lambda}"
    return None


def wrong_for(settings: ExperimentSettings) -> str | None:
    """Check the agents' names, and the federation against their number and the attack on them."""
    federation, agents = settings.federation, len(settings.agents)
    if federation.secure_aggregation and (attackers := settings.attack.attackers):
        secure = "with federation.secure_aggregation"
        return (
            f"attack.attackers is {attackers}; allowed {secure}: 0 (attacks change plain answers)"
        )
    return (
        wrong_names(settings.agent_names)
        or wrong_trim(federation, *heard_of(federation, agents))
        or wrong_auditions(federation, agents)
        or wrong_secure(federation, agents)
        or wrong_attack(settings.attack, agents)
    )


def wrong_names(names: Sequence[str]) -> str | None:
    """Check that every agent has a name of its own, and none that stands for something else."""
    for number, name in enumerate(names, start=1):
        # On some systems, names that differ in case alone are the same directory.
        before = [other.lower() for other in names[: number - 1]]
        if name.lower() in (*before, *RESERVED_NAMES):
            own = f"a name of its own, and not {' or '.join(map(repr, RESERVED_NAMES))}"
            return f"agents.{number}.name: {name!r} is taken; allowed: {own}"
    return None


def wrong_attack(attack: AttackSettings, agents: int) -> str | None:
    """Check that the attack has a name and a number, and leaves enough honest agents."""
    if attack.attackers and attack.name is None:
        allowed = ", ".join(ATTACKS)
        return f"attack.attackers is {attack.attackers}: needs attack.name; allowed: {allowed}"
    if attack.name is None:
        return None
    most = agents - ATTACKS[attack.name].honest_agents_needed
    if not 1 <= attack.attackers <= most:
        allowed = f"1 to {most} of {agents} agents" if most > 0 else f"none of {agents} agents"
        return (
            f"attack.attackers is {attack.attackers} with attack.name = {attack.name!r}; allowed: "
            f"{allowed}"
        )
    return None


def wrong_trim(federation: FederationSettings, agents: int, whose: str) -> str | None:
    """Check that the trim cuts at least one agent at each end and leaves at least one."""
    trim, most = federation.trim, (agents - 1) // 2
    if trim is None:
        return None
    if most < 1:
        return f"federation.rule = {federation.rule!r} needs at least 3 {whose}; there are {agents}"
    cuts = trim * agents >= 1 - 1e-4 if trim < 0.5 else trim in range(1, most + 1)
    allowed = f"1 to {most} of {agents} {whose}, or a share from 1/{agents} to below 0.5"
    return None if cuts else f"federation.trim is {trim:g}; allowed: {allowed}"


def wrong_auditions(
    federation: FederationSettings, agents: int, whose: str = "agents"
) -> str | None:
    """Check that there are enough agents for auditions, and environments for so many agents."""
    most = federation.query_batch // agents if agents > 2 else 0  # of two, both would be heard
    if federation.auditions <= most:
        return None
    return (
        f"federation.auditions is {federation.auditions}; allowed: 0 to {most}, with "
        f"federation.query_batch = {federation.query_batch} and {agents} {whose}"
    )


def heard_of(federation: FederationSettings, agents: int, whose: str = "agents") -> tuple[int, str]:
    """Return the least number of agents that the server hears, and what messages call them."""
    return (agents // 2 + 1, f"{whose} that are heard") if federation.auditions else (agents, whose)


def wrong_secure(federation: FederationSettings, agents: int, whose: str = "agents") -> str | None:
    """Check that this number of agents can use secure aggregation, if it is on."""
    if federation.secure_aggregation:
        return wrong_size(agents, federation.secure_value_bound, whose)
    default = type(federation).model_fields["secure_value_bound"].default
    unused = federation.secure_value_bound != default
    return "federation.secure_value_bound is for secure_aggregation = true" if unused else None
