"""Run the rounds of a federation service, from the position in its journal."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedhql.engines.build import build_batch, build_server
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.errors import FedHQLError
from fedhql.federation import Budget, RoundFigures, RoundProgress
from fedhql.remote.server.condition import Stopped
from fedhql.remote.server.exchange import TooFew
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.overview import members_status, wait_status
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.status import FederationStatus
from fedhql.remote.wire import SOFTWARE
from fedhql.remote.wire_pb2 import Cause
from fedhql.service.evaluations import MemberEvaluations
from fedhql.service.position import Position, Stage
from fedhql.service.service_records import ServiceRecords
from fedhql.settings.served import ServedSettings
from fedhql.storage.records import ROUND, SELF_LEARNING

log = logging.getLogger(__name__)
POSITION = "position"  # its key in the journal
REPLAY = "replay.npy"  # the server's memory, in its home


class Service:
    """Runs Algorithm 1 with the members that are present, in a thread beside the roster's loop."""

    def __init__(
        self,
        settings: ServedSettings,
        home: Path,
        roster: Roster,
        loop: asyncio.AbstractEventLoop,
        *,
        actions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._roster, self._clock = settings, roster, clock
        self._began = self._round_began = clock()
        self._cohort = RemoteCohort(roster, loop, actions)
        self._in_loop = self._cohort.in_loop
        self._records = ServiceRecords(home, settings.seed, roster, self._in_loop)
        self._evaluations = MemberEvaluations(settings, self._cohort, roster, self._records)
        self._environments = build_batch(settings, settings.federation.query_batch)
        self._server = build_server(
            settings, self._cohort, self._environments, replay_file=home / REPLAY
        )
        self._position = Position.of(roster.journal.fact(POSITION))
        self._figures: RoundFigures | None = None
        if settings.service.mode == "continuous":
            roster.on_idle = self._keep_learning
        if self._position.progress is not None:  # before a member returns and spends it
            self._cohort.enlist(self._position.enlisted)
            self._reserve(self._position.progress)

    def run(self) -> None:
        """Run rounds until every budget is spent or the roster is stopped."""
        try:
            self._gather()
            while self._position.stage != Stage.FINISHED:
                if self._position.stage in (Stage.NEW, Stage.NEXT, Stage.LEARN):
                    if not self._learn():
                        break
                    self._move(Stage.EVALUATE)
                if self._position.stage == Stage.EVALUATE:
                    self._evaluations.take(SELF_LEARNING, self._position.round)
                    self._move(Stage.FEDERATE)
                if self._position.stage == Stage.FEDERATE:
                    self._federate()
                    if self._evaluations.has(ROUND):
                        # Members that could not pay for the round are evaluated too.
                        self._cohort.enlist(self._not_late(self._position.enlisted))
                        self._move(Stage.REVIEW)
                if self._position.stage == Stage.REVIEW:
                    self._evaluations.take(ROUND, self._position.round)
                self._next_round()
            self._finish()
        except Stopped:
            if self._roster.failure is not None:
                raise self._roster.failure from None
            log.info("stopped in round %s; run the same command to continue", self._position.round)
        except FedHQLError as error:
            self._in_loop(self._roster.fail, error)
            raise
        finally:
            self._environments.close()

    # The stages of a round

    def _gather(self) -> None:
        """Wait for enough members to begin; after a restart, for its members for a limited time."""
        roster, service = self._roster, self._service
        if self._position.stage == Stage.NEW:
            what = roster.needs("start_with", "to begin")
            self._in_loop(roster.tell, f"waiting for members: {what()}")
            with roster.waits.waiting(what, self._missing):
                self._wait(lambda: len(roster.present()) >= self._service.start_with)
            if never := [n for n in service.members if n not in roster.members]:
                text = f"begins without {', '.join(never)}: listed, but never connected"
                self._in_loop(roster.tell, text, level="warning")
            self._write_position(self._position.at(Stage.NEXT))
            self._in_loop(roster.end_round)  # in continuous mode, members begin to learn now
            return
        in_round = [n for n in self._position.enlisted if roster.takes_part(n)]
        self._cohort.enlist(in_round)

        def all_back() -> bool:
            wanted = in_round if self._position.stage != Stage.NEXT else self._left()
            return {n for n in wanted if roster.takes_part(n)} <= set(roster.present())

        if not self._wait(all_back, 0):
            most = f"at most {service.return_seconds:g} s"
            self._in_loop(roster.tell, f"restarted: waiting {most} for the members it had")
        with roster.waits.waiting("the members of before the restart", self._missing):
            self._wait(all_back, service.return_seconds)

    def _learn(self) -> bool:
        """Wait until the next federation round is due. Return False if there will be none."""
        service, federation = self._service, self._settings.federation
        if service.mode == "continuous":
            members = self._roster.members
            self._wait(
                lambda: all(member.over for member in members.values()),
                service.round_interval_seconds,
            )
            return self._enlist()
        if self._position.stage == Stage.LEARN:  # the phase began before a restart
            self._cohort.finish_learning()
        elif self._enlist():
            self._position = self._position.at(Stage.LEARN, self._cohort.names)
            facts = {POSITION: self._position.fact()}
            self._cohort.self_learn(federation.self_learning_env_steps, facts)
        else:
            return False
        return True

    def _enlist(self) -> bool:
        """Enlist every present member that can pay. Return False if the federation is over."""
        roster = self._roster
        present: list[str] = []  # as last seen; members come and go all the time

        def enough() -> bool:
            present[:] = roster.available(self._service.quorum)
            return len(present) >= self._service.quorum

        def over() -> bool:
            return len(self._left()) < self._service.quorum

        self._in_loop(self._dismiss_spent)
        with roster.waits.waiting(roster.needs("quorum", "for a round"), self._missing):
            if (
                self._wait(lambda: enough() or roster.is_ending)
                and len(present) < self._service.quorum
            ):
                # Near the end, absent members may never return.
                self._wait(lambda: enough() or over(), self._service.learning_deadline_seconds)
        self._cohort.enlist(present)
        self._round_began = self._clock()
        return len(present) >= self._service.quorum

    @property
    def _service(self) -> ServiceSettings:
        """The present settings; the operator may change them."""
        return self._roster.settings

    def _missing(self) -> list[str]:
        """Return the members that are not available, listed ones that never came among them."""
        members, available = self._roster.members, self._roster.available()
        known = list(members)  # a copy: the status page's threads call this
        here = [name for name in known if self._roster.takes_part(name)]
        gone = [name for name in here if name not in available]
        return gone + [name for name in self._service.members if name not in members]

    def _left(self) -> list[str]:
        """Return the members that have begun and not finished."""
        members = list(self._roster.members.values())
        return [m.name for m in members if self._roster.takes_part(m.name) and self._took_part(m)]

    def _took_part(self, member: MemberRecord) -> bool:
        """Return False for a member that left before it learned anything: nobody waits for it."""
        return member.name in self._roster.sessions or member.own_env_steps > 0

    def _dismiss_spent(self) -> None:
        for name, member in self._roster.members.items():
            if not member.over and not member.learning and self._roster.learnable(name) < 1:
                self._roster.dismiss(name, "its budget is spent")

    def _federate(self) -> None:
        position, settings = self._position, self._settings
        if position.progress is None:
            self._cohort.enlist(self._not_late(self._cohort.names))
        else:  # now a late member cannot leave
            here = [name for name in self._cohort.names if self._roster.takes_part(name)]
            self._cohort.enlist(here)
        going_on = position.progress  # set if the server was stopped in the middle of the round
        carries_over = going_on is not None or settings.federation.carry_over
        if carries_over and position.environments is not None:
            self._environments.go_to(position.environments)
        if (replay := self._server.replay) is not None:  # without steps that were undone
            replay.go_to(position.remembered)
        self._server.earnings = dict(position.earnings)
        before_step = going_on or RoundProgress()

        def after_step(progress: RoundProgress) -> None:
            nonlocal before_step
            taken = progress.server_env_steps - before_step.server_env_steps
            before_step = progress
            self._cohort.finish_step(taken, lambda: {POSITION: self._at(progress)})

        seeds = seeds_for(
            settings.seed, Stream.SERVER, position.round, count=settings.federation.query_batch
        )
        quorum = self._service.quorum
        enough_in_time = len(self._cohort.names) >= quorum
        granted = self._in_loop(self._reserve, before_step)
        why_none = f"fewer than {quorum} members " + (
            "have budget left for one" if enough_in_time else "are there and in time"
        )
        if len(self._cohort.names) >= quorum and (going_on or len(seeds) <= granted):
            # Random actions become fewer with the env steps of the member that has taken most.
            own = max(member.own_env_steps for member in self._roster.members.values())
            budget = Budget(env_steps_per_agent=own + granted, agents=1, own_env_steps=own)
            standing = self._environments.position()
            try:
                self._server.federate(
                    budget, seeds.tolist(), going_on=going_on, after_step=after_step
                )
            except TooFew:
                why_none = "too few of its members are left"
                text = f"round {position.round} ends early: {why_none}"
                self._in_loop(self._roster.tell, text, level="warning")
                self._environments.go_to(self._position.environments or standing)  # undo the step
        figures = before_step.figures() if before_step.steps else None
        if figures is not None:
            self._figures = figures
            self._records.federated(position.round, self._cohort.names, figures)
        self._log_round(figures, why_none)

    def _not_late(self, names: Sequence[str]) -> list[str]:
        roster = self._roster
        return [n for n in names if roster.takes_part(n) and not roster.members[n].late_with]

    def _log_round(self, figures: RoundFigures | None, why_none: str) -> None:
        every, round_ = self._service.log_every_rounds, self._position.round
        now, began = self._clock(), self._round_began
        self._round_began = now
        if every == 0 or round_ % every:
            return
        if figures is None:
            why = f"no server step, because {why_none}"
            log.info("round %d: %.1f s of self-learning; %s", round_, now - began, why)
            return
        names = ", ".join(self._cohort.names)
        log.info(
            "round %d: %.1f s with %s; spread %.4g, TD error %.4g; %d improvements in all rounds",
            round_, now - began, names, figures.spread, figures.td_error,
            self._roster.improvements,
        )  # fmt: skip

    def _reserve(self, progress: RoundProgress) -> int:
        """Reserve env steps for the rest of the round and return how many.

        Members that cannot pay leave the round only before its first step.
        """
        federation = self._settings.federation
        whole_round = federation.horizon_steps * federation.query_batch
        least = 0 if progress.steps else federation.query_batch
        return self._cohort.reserve(whole_round - progress.server_env_steps, least)

    # The position in the journal

    def _at(self, progress: RoundProgress) -> dict[str, Any]:
        remembered = self._server.replay.count if self._server.replay else 0
        standing = self._environments.position()
        earnings = self._server.earnings
        self._position = self._position.after_step(progress, standing, remembered, earnings)
        return self._position.fact()

    def _move(self, stage: Stage) -> None:
        self._write_position(self._position.at(stage, self._cohort.names))

    def _next_round(self) -> None:
        carry_over = self._settings.federation.carry_over
        # After a restart in the review of a round, only the position knows the environments.
        standing = self._position.environments or self._environments.position()
        self._write_position(self._position.next_round(standing if carry_over else None))
        self._in_loop(self._roster.end_round)
        self._records.export(self._position.round)

    def _finish(self) -> None:
        roster = self._roster
        self._write_position(self._position.at(Stage.FINISHED))
        self._records.export(self._position.round)
        for name, member in list(roster.members.items()):
            if not member.over:
                why = "the federation is over: too few members are left"
                self._in_loop(roster.dismiss, name, why, Cause.FEDERATION_OVER)

        def silent() -> list[str]:
            left = [m for m in list(roster.members.values()) if m.finished and not m.parted]
            listed = self._service.members
            return [m.name for m in left if self._took_part(m) and (m.name in listed or not listed)]

        with roster.waits.waiting("members that have not heard of the end", silent):
            heard = self._wait(lambda: not silent(), self._service.return_seconds)
        if not heard:
            text = (
                f"these members are not known to have all improvements: {', '.join(silent())}; "
                "start this server again to send them the rest"
            )
            self._in_loop(roster.tell, text, level="warning")
        self._in_loop(roster.tell, "the federation has finished")

    def _keep_learning(self, member: MemberRecord) -> None:
        """Start a member's next phase at once, in continuous mode, while its budget lasts."""
        if member.over or self._position.stage == Stage.NEW:  # else it may spend it all alone
            return
        if self._roster.learnable(member.name) >= 1:
            self._roster.learn([member.name], self._settings.federation.self_learning_env_steps)
        elif member.name not in self._roster.reserved:  # else the round needs it until its end
            self._roster.dismiss(member.name, "its budget is spent")

    # Calls into the roster's loop

    def _wait(self, reached: Callable[[], bool], seconds: float | None = None) -> bool:
        return self._cohort.call(self._roster.wait_until(reached, seconds))

    def _write_position(self, position: Position) -> None:
        self._position = position
        self._in_loop(self._roster.write, facts={POSITION: position.fact()})

    def status(self, federation: str) -> FederationStatus:
        """Return the status for the status page. No lock is needed: each part is consistent."""
        roster, figures = self._roster, self._figures
        waiting = wait_status(roster)
        return FederationStatus(
            federation=federation,
            environment=self._settings.environment.id,
            mode=self._service.mode,
            stage=self._position.stage.in_words,
            round=self._position.round,
            improvements=roster.improvements,
            quorum=self._service.quorum,
            env_steps_per_member=self._settings.budget.env_steps_per_agent,
            server_env_steps=roster.server_env_steps,
            uptime_seconds=self._clock() - self._began,
            members=members_status(roster, waiting),
            exchanges=roster.latencies.status(),
            spread=figures.spread if figures else None,
            td_error=figures.td_error if figures else None,
            loss=figures.loss if figures else None,
            events=list(roster.log.events),
            waiting=waiting,
            refused_connections=dict(roster.log.refused_connections),
            software=SOFTWARE,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            members_expected=len(self._service.members) or len(roster.members),
            exchange_deadline_seconds=self._service.exchange_deadline_seconds,
        )
