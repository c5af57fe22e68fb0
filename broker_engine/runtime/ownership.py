"""What an offset commit says besides the offset: whose the partition is, and how far its log time has come.

The metadata of the engine group's offsets are written by every transaction anyway, together with the states that they
belong to, so they cost nothing; a record of its own for every turn would be one more request per partition. Offsets
that somebody else has set (``kafka-consumer-groups --reset-offsets``) carry no such metadata and are recognised by
that.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from broker_engine.log.ports import CommittedOffset

_OWNED, _RELEASED = "owned", "released"


class Mark(NamedTuple):
    """The owner's own words about a partition.

    ``offset`` repeats the committed one; ``log_time_ms`` is the largest LogAppendTime decided (epoch milliseconds).
    """

    slot: str
    is_released: bool
    offset: int
    log_time_ms: int

    def commit(self) -> CommittedOffset:
        """The offset commit that carries this mark, for example ``owned:0:17:1700000000000``."""
        state = _RELEASED if self.is_released else _OWNED
        return CommittedOffset(self.offset, f"{state}:{self.slot}:{self.offset}:{self.log_time_ms}")

    @classmethod
    def of(cls, found: CommittedOffset | None) -> Self | None:
        """The mark of a commit; None when it was not written by an owner."""
        state, _, rest = (found.metadata if found is not None else "").partition(":")
        fields = rest.rsplit(":", 2)
        if state not in (_OWNED, _RELEASED) or len(fields) != 3 or not all(field.isdecimal() for field in fields[1:]):
            return None
        return cls(fields[0], state == _RELEASED, int(fields[1]), int(fields[2]))
