"""Spelling any name with the characters that Kafka allows in a topic, reversibly.

Letters and digits stay, ``_`` becomes ``--``, every other UTF-8 byte ``-xx``. The result holds neither ``.`` nor ``_``,
so two topics never differ only by these (Kafka refuses the second one), and ``.`` is free to separate the parts.
"""

from __future__ import annotations

import re

#: Kafka allows 249 characters in a topic name; a namespace takes up to 60, a domain up to 60 and `.schedule.` the rest.
MAX_ENCODED_NAME = 118

_PLAIN = re.compile(r"[A-Za-z0-9]")
_ESCAPED = re.compile(r"--|-([0-9a-f]{2})|([A-Za-z0-9])")


def encode_name(name: str) -> str:
    """Spell a name for use in a topic name."""
    return "".join(
        c if _PLAIN.fullmatch(c) else "--" if c == "_" else "".join(f"-{b:02x}" for b in c.encode()) for c in name
    )


def decode_name(encoded: str) -> str:
    """The inverse of encode_name."""
    out = bytearray()
    for match in _ESCAPED.finditer(encoded):
        hexadecimal, plain = match.groups()
        out += bytes.fromhex(hexadecimal) if hexadecimal else plain.encode() if plain else b"_"
    return out.decode()
