"""The settings file of a federation service."""

from pydantic import NonNegativeInt

from fedhql.errors import SettingsError
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.secure.fixed_point import LEAST_MEMBERS
from fedhql.settings.contradictions import heard_of, wrong_auditions, wrong_secure, wrong_trim
from fedhql.settings.experiment import parse
from fedhql.settings.overrides import Overrides
from fedhql.settings.sections import TaskSettings
from fedhql.storage.records import RESERVED_NAMES


class ServedSettings(TaskSettings):
    """The settings of a federation whose members run their own agents."""

    service: ServiceSettings = ServiceSettings()
    seed: NonNegativeInt = 0
    """The seed of the server's and the evaluation's episodes."""

    @property
    def secure_value_bound(self) -> float | None:
        """Return the bound on values; None without secure aggregation."""
        federation = self.federation
        return federation.secure_value_bound if federation.secure_aggregation else None


def read_served_settings(text: str, overrides: Overrides = ()) -> ServedSettings:
    settings = parse(text, overrides, ServedSettings)
    service = settings.service
    heard = heard_of(settings.federation, service.quorum, "answers (service.quorum)")
    if wrong := wrong_trim(settings.federation, *heard):
        raise SettingsError(wrong)
    if service.quorum > service.start_with:
        raise SettingsError(
            f"service.quorum is {service.quorum}; allowed: up to service.start_with, which is "
            f"{service.start_with}"
        )
    if service.members and len(service.members) < service.start_with:
        raise SettingsError(
            f"service.start_with is {service.start_with}, but service.members names "
            f"{len(service.members)}"
        )
    if len(set(service.members)) < len(service.members):
        raise SettingsError("service.members: a name is listed twice; allowed: each name once")
    if taken := [name for name in service.members if name.lower() in RESERVED_NAMES]:
        words = ", ".join(map(repr, RESERVED_NAMES))
        raise SettingsError(f"service.members: {taken[0]!r} is reserved; allowed: not {words}")
    if settings.federation.public:
        raise SettingsError(
            "federation.server_environments = 'public' is a control for experiments; allowed for a "
            "service: 'reset', 'carry-over'"
        )
    N = len(service.members)
    if settings.federation.auditions and not N:
        raise SettingsError(
            "federation.auditions needs service.members, so that each has its environments"
        )
    if N and (wrong := wrong_auditions(settings.federation, N, "service.members")):
        raise SettingsError(wrong)
    if wrong := _secure_limit(settings) or wrong_secure(settings.federation, N, "service.members"):
        raise SettingsError(wrong)
    return settings


def _secure_limit(settings: ServedSettings) -> str | None:
    """Return which setting of [service] secure aggregation does not allow, or None."""
    service, secure = settings.service, "with federation.secure_aggregation"
    if not settings.federation.secure_aggregation:
        return None
    if service.quorum < LEAST_MEMBERS:
        return f"service.quorum is {service.quorum}; allowed {secure}: at least {LEAST_MEMBERS}"
    if service.evaluate_members:
        why = "because evaluating a member shows its values to the server"
        return f"service.evaluate_members is true; allowed {secure}: false, {why}"
    bound, default = service.value_bound, type(service).model_fields["value_bound"].default
    if bound != default:  # a server's home holds the default, so it is allowed
        instead = "leave it out and set federation.secure_value_bound"
        return f"service.value_bound is {bound:g}, which has no effect {secure}; {instead}"
    return None
