"""Who may say what: signatures on commands, tokens on worker reports.

With a namespace key every command that is not a worker's report is signed, and a report carries the token of the
hand-out it is about, so that a worker of one domain can neither forge results of another nor steer workflows. Without a
key (development) both are empty and nothing is checked.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

from broker_engine.errors import BadSignature

#: Keyed BLAKE2b (RFC 7693) is a MAC by itself and three times faster than HMAC-SHA256 at our record sizes; the decider
#: computes four of them per task.
_MAC_BYTES = 32
#: The last field of a command record, ``["null", "bytes"]``: absent, or 32 bytes (a length of 32 is written as 0x40).
_ABSENT = b"\x00"
_PRESENT = b"\x02\x40"


def _mac(key: bytes, data: bytes) -> bytes:
    return blake2b(data, key=key, digest_size=_MAC_BYTES).digest()


class Signer:
    """Signs and checks with the namespace key; with None it does neither."""

    def __init__(self, key: str | None) -> None:
        self._key = blake2b(b"broker-engine namespace key\x00" + key.encode(), digest_size=32).digest() if key else None

    @property
    def is_open(self) -> bool:
        return self._key is None

    def key_hash(self) -> bytes | None:
        """A fingerprint to compare keys by; it does not tell the key."""
        return _mac(self._key, b"fingerprint") if self._key else None

    def sign(self, encoded: bytes) -> bytes:
        """Put the signature into an encoded, unsigned command record."""
        if self._key is None:
            return encoded
        assert encoded.endswith(_ABSENT), "the signature is the last field and must be empty before signing"
        body = encoded[:-1]
        return body + _PRESENT + _mac(self._key, body)

    def check(self, encoded: bytes) -> None:
        """Check a command's signature.

        Raises:
            BadSignature: missing or wrong.
        """
        if self._key is None:
            return
        body, mark = encoded[: -_MAC_BYTES - 2], encoded[-_MAC_BYTES - 2 : -_MAC_BYTES]
        expected = _mac(self._key, body)
        if mark != _PRESENT or not compare_digest(encoded[-_MAC_BYTES:], expected):
            raise BadSignature

    def token(self, task_id: str, hand_out: int) -> bytes | None:
        """The token of one hand-out."""
        if self._key is None:
            return None
        return _mac(self._key, f"hand-out\x00{task_id}\x00{hand_out}".encode())

    def check_token(self, task_id: str, hand_out: int, token: bytes | None) -> None:
        """Check the token of a worker's report.

        Raises:
            BadSignature: missing or of another hand-out.
        """
        expected = self.token(task_id, hand_out)
        if expected is not None and not compare_digest(expected, token or b""):
            raise BadSignature(f"the report about task {task_id}, hand-out {hand_out} carries no valid token")
