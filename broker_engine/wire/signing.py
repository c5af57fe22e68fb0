"""Who may say what: signatures on commands, tokens on worker reports.

With a namespace key every command that is not a worker's report is signed, and a report carries the token of the
hand-out it is about, so that a worker of one domain can neither forge results of another nor steer workflows. Without a
key (development) both are empty and nothing is checked.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from broker_engine.errors import BadSignature

_MAC = "sha256"
_MAC_BYTES = 32
#: The last field of a command record, ``["null", "bytes"]``: absent, or 32 bytes (a length of 32 is written as 0x40).
_ABSENT = b"\x00"
_PRESENT = b"\x02\x40"


class Signer:
    """Signs and checks with the namespace key; with None it does neither."""

    def __init__(self, key: str | None) -> None:
        self._key = sha256(b"broker-engine namespace key\x00" + key.encode()).digest() if key else None

    @property
    def is_open(self) -> bool:
        return self._key is None

    def key_hash(self) -> bytes | None:
        """A fingerprint to compare keys by; it does not tell the key."""
        return sha256(b"fingerprint\x00" + self._key).digest() if self._key else None

    def sign(self, encoded: bytes) -> bytes:
        """Put the signature into an encoded, unsigned command record."""
        if self._key is None:
            return encoded
        assert encoded.endswith(_ABSENT), "the signature is the last field and must be empty before signing"
        body = encoded[:-1]
        return body + _PRESENT + hmac.digest(self._key, body, _MAC)

    def check(self, encoded: bytes) -> None:
        """Check a command's signature.

        Raises:
            BadSignature: missing or wrong.
        """
        if self._key is None:
            return
        body, mark = encoded[: -_MAC_BYTES - 2], encoded[-_MAC_BYTES - 2 : -_MAC_BYTES]
        expected = hmac.digest(self._key, body, _MAC)
        if mark != _PRESENT or not hmac.compare_digest(encoded[-_MAC_BYTES:], expected):
            raise BadSignature

    def token(self, task_id: str, hand_out: int) -> bytes | None:
        """The token of one hand-out."""
        if self._key is None:
            return None
        return hmac.digest(self._key, f"hand-out\x00{task_id}\x00{hand_out}".encode(), _MAC)

    def check_token(self, task_id: str, hand_out: int, token: bytes | None) -> None:
        """Check the token of a worker's report.

        Raises:
            BadSignature: missing or of another hand-out.
        """
        expected = self.token(task_id, hand_out)
        if expected is not None and not hmac.compare_digest(expected, token or b""):
            raise BadSignature(f"the report about task {task_id}, hand-out {hand_out} carries no valid token")
