"""Orders: the work that the server sends to members.

Each order has an identity. Improvements that a member lacks go out with its next order. If they do
not fit into one message, orders without work bring them piece by piece; each waits for the report
of the one before.
"""

from collections.abc import Iterable
from typing import Any

from fedhql.remote.server.catch_up import CatchUpWindow
from fedhql.remote.server.exchange import Exchange
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.session import Session
from fedhql.remote.wire import pack
from fedhql.remote.wire_pb2 import FromServer, Learn, Order, OrderId


class Orders:
    """The orders of one server process. Its epoch makes every order identity unique."""

    def __init__(self, epoch: int, catch_up_window: CatchUpWindow, question_bytes: int) -> None:
        """`question_bytes` is room for the largest question beside improvements."""
        self.epoch, self._catch_up_window = epoch, catch_up_window
        self.question_bytes = question_bytes
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def catch_up(self, session: Session) -> bool:
        """Return whether what the member lacks fits into its next order; else send a piece of it.

        Nothing else may be sent before the member has reported the piece.
        """
        if session.piece:
            return False
        if self._catch_up_window.last <= session.applied + 1:  # one always fits
            return True
        order, reached = self._with_improvements(session, 0)
        if reached == self._catch_up_window.last:
            return True
        order.id.number = session.piece = self.next_number()
        session.applied = reached
        session.send(FromServer(order=order))
        return False

    def send_improvements(self, session: Session) -> int:
        """Send an order without work that brings the missing improvements; return its number."""
        order = self._next_order(session)
        session.send(FromServer(order=order))
        return order.id.number

    def send_learning(self, session: Session, member: MemberRecord, chunk_env_steps: int) -> None:
        """Send the self-learning phase that the member's record holds."""
        order = self._next_order(session)
        order.learn.CopyFrom(
            Learn(phase=member.phase, env_steps=member.phase_size, chunk_env_steps=chunk_env_steps)
        )
        session.send(FromServer(order=order))

    def send_question(self, sessions: Iterable[Session], exchange: Exchange) -> None:
        """Send the question of an exchange to sessions without an open question."""
        messages: dict[Any, bytes] = {}  # serialized once for sessions that get the same bytes
        for session in sessions:
            new_keys = tuple(key.name for key in session.unmet(exchange.cohort))
            key = (id(exchange.states[session.name]), session.applied, new_keys)
            if key not in messages:
                messages[key] = self._question(session, exchange).SerializeToString()
            session.outbox.put_nowait(messages[key])
            session.asked, session.applied = exchange.number, self._catch_up_window.last
            session.met.update(each.public_key for each in exchange.cohort)

    def _question(self, session: Session, exchange: Exchange) -> FromServer:
        order, _ = self._with_improvements(session, exchange.number)
        order.query.states.CopyFrom(pack(exchange.states[session.name]))
        order.query.act = exchange.act
        order.query.cohort.extend(key.name for key in exchange.cohort)
        order.query.keys.extend(session.unmet(exchange.cohort))
        return FromServer(order=order)

    def _next_order(self, session: Session) -> Order:
        order, session.applied = self._with_improvements(session, self.next_number())
        return order

    def _with_improvements(self, session: Session, number: int) -> tuple[Order, int]:
        id_ = OrderId(epoch=self.epoch, number=number)
        room = session.peer.receive_bytes - self.question_bytes
        return self._catch_up_window.order(id_, session.applied, room)
