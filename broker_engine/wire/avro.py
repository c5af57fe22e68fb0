"""Avro encoders and decoders compiled per schema, for named tuples.

fastavro walks a schema for every record: about 1 µs a field, 2.5 µs for a present optional one, which at forty fields
and ten records per workflow was most of the decider's time. Here a schema becomes one straight-line Python function
(decisions/0004). The bytes are the same, which a property test checks against fastavro for every schema we ship.

Supported: what our schemas use (string, bytes, int, long, boolean, enum, ``["null", T]``, arrays of records).
Evolution follows the rules of ``schemas/README.md``: a decoder is compiled for the *writer's* schema, takes unknown
fields away and fills missing ones with the reader's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

#: A parsed schema or the type of one field; ``Any`` because Avro schemas are nested JSON.
Schema = Any

_LENGTHS = 4096


def zigzag(number: int) -> bytes:
    """A long as Avro writes it."""
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """The long at a position, and the position after it."""
    shift = value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


#: Lengths and small numbers, ready made.
_PREFIX = tuple(zigzag(n) for n in range(_LENGTHS))
#: Moments and names repeat within a batch, so the cached forms of these are hit most of the time.
_long = lru_cache(maxsize=16_384)(zigzag)


@lru_cache(maxsize=32_768)
def _text(value: str) -> bytes:
    data = value.encode()
    return zigzag(len(data)) + data


@lru_cache(maxsize=32_768)
def _present_text(value: str) -> bytes:
    return b"\x02" + _text(value)


@lru_cache(maxsize=16_384)
def _present_long(value: int) -> bytes:
    return b"\x02" + zigzag(value)


def _bytes(value: bytes) -> bytes:
    size = len(value)
    return (_PREFIX[size] if size < _LENGTHS else zigzag(size)) + value


def _present_bytes(value: bytes) -> bytes:
    return b"\x02" + _bytes(value)


_PLAIN_WRITERS: Mapping[str, Callable[..., bytes]] = {
    "string": _text,
    "long": _long,
    "int": _long,
    "bytes": _bytes,
}
_OPTIONAL_WRITERS: Mapping[str, Callable[..., bytes]] = {
    "string": _present_text,
    "long": _present_long,
    "int": _present_long,
    "bytes": _present_bytes,
}


def strip_logical_types(schema: Schema) -> Schema:
    """The schema without logical types: inside the engine a moment is its number of milliseconds."""
    if isinstance(schema, dict):
        if "logicalType" in schema:
            return schema["type"]
        return {key: strip_logical_types(value) if key != "default" else value for key, value in schema.items()}
    if isinstance(schema, list):
        return [strip_logical_types(branch) for branch in schema]
    return schema


def _collect_named(schema: Schema, named: dict[str, Schema]) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in ("record", "enum"):
            named[schema["name"]] = schema
        for key in ("type", "items"):
            _collect_named(schema.get(key), named)
        for field in schema.get("fields", ()):
            _collect_named(field["type"], named)
    elif isinstance(schema, list):
        for branch in schema:
            _collect_named(branch, named)


class _Compiler:
    """Source lines and constants of one generated function."""

    def __init__(self, schema: Schema) -> None:
        self.constants: dict[str, Any] = {}
        self.named: dict[str, Schema] = {}
        _collect_named(schema, self.named)

    def constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def resolve(self, schema: Schema) -> tuple[Schema, bool]:
        """A field's type with names looked up, and whether it is optional."""
        is_optional = isinstance(schema, list)
        if is_optional:
            nothing, schema = schema
            assert nothing == "null", "only [null, T] unions are used"
        if isinstance(schema, str):
            schema = self.named.get(schema, schema)
        if isinstance(schema, dict) and isinstance(schema["type"], str) and schema["type"] in _PLAIN_WRITERS:
            schema = schema["type"]
        return schema, is_optional

    # --- encoding

    def write(self, schema: Schema, variable: str) -> str:
        """An expression that gives the bytes of a variable."""
        resolved, is_optional = self.resolve(schema)
        if isinstance(resolved, str) and resolved in _PLAIN_WRITERS:
            if is_optional:  # most optional fields are absent most of the time: no call for those
                return f"(b'\\0' if {variable} is None else {self.constant(_OPTIONAL_WRITERS[resolved])}({variable}))"
            return f"{self.constant(_PLAIN_WRITERS[resolved])}({variable})"
        plain = self._write_plain(resolved, variable)
        return f"(b'\\0' if {variable} is None else b'\\2' + {plain})" if is_optional else plain

    def _write_plain(self, schema: Schema, variable: str) -> str:
        if schema == "boolean":
            return f"(b'\\1' if {variable} else b'\\0')"
        if schema["type"] == "enum":
            table = {symbol: zigzag(i) for i, symbol in enumerate(schema["symbols"])}
            return f"{self.constant(table)}[{variable}._value_]"
        if schema["type"] == "array":
            item = self.constant(compile_encoder(self.resolve(schema["items"])[0]))
            prefix = self.constant(zigzag)
            many = f"b''.join(({prefix}(len({variable})), *map({item}, {variable}), b'\\0'))"
            return f"({many} if {variable} else b'\\0')"
        raise AssertionError(f"{schema} is not a type our schemas use")

    # --- decoding

    def read(self, schema: Schema, target: str, kind: object, indent: str = "    ") -> list[str]:
        """Statements that read a variable at ``p`` and move ``p`` on. ``kind``: the enum or tuple class to make."""
        resolved, is_optional = self.resolve(schema)
        if not is_optional:
            return [indent + line for line in self._read_plain(resolved, target, kind)]
        inner = [f"{indent}    {line}" for line in self._read_plain(resolved, target, kind)]
        return [f"{indent}b = d[p]; p += 1", f"{indent}if b == 0: {target} = None", f"{indent}else:", *inner]

    def _read_plain(self, schema: Schema, target: str, kind: object) -> list[str]:
        number = self.constant(read_long)
        read_number = [
            "b = d[p]",
            f"if b < 128: {target} = (b >> 1) ^ -(b & 1); p += 1",
            f"else: {target}, p = {number}(d, p)",
        ]
        if schema in ("long", "int"):
            return read_number
        if schema == "boolean":
            return [f"{target} = d[p] == 1; p += 1"]
        if schema in ("string", "bytes"):
            text = f"d[p:e]{'.decode()' if schema == 'string' else ''}"
            if isinstance(kind, type) and issubclass(kind, Enum):  # an open list of words: unknown ones stay text
                words = self.constant({str(member.value): member for member in kind})
                text = f"{words}.get({text}) or {text}"
            return [
                *read_number,
                f"e = p + {target}",
                f"if e < p or e > len(d): raise ValueError('a {schema} is cut off')",
                f"{target} = {text}; p = e",
            ]
        if schema["type"] == "enum":
            members: Sequence[object] = schema["symbols"]
            if isinstance(kind, type) and issubclass(kind, Enum):
                members = [kind(symbol) if symbol in kind._value2member_map_ else None for symbol in members]
            return [*read_number, f"{target} = {self.constant(tuple(members))}[{target}]"]
        if schema["type"] == "array":
            reader = self.constant(_compile_reader(self.resolve(schema["items"])[0], kind))
            return [f"{target}, p = {self.constant(_read_blocks)}(d, p, {reader})"]
        raise AssertionError(f"{schema} is not a type our schemas use")


def _read_blocks(data: bytes, position: int, reader: Callable[[bytes, int], Any]) -> tuple[tuple[Any, ...], int]:
    items: list[Any] = []
    while True:
        count, position = read_long(data, position)
        if count == 0:
            return tuple(items), position
        if count < 0:  # a block with its size in front
            count = -count
            _, position = read_long(data, position)
        for _ in range(count):
            item, position = reader(data, position)
            items.append(item)


def compile_encoder(schema: Schema, prefix: bytes = b"") -> Callable[[Any], bytes]:
    """A function from a tuple with the schema's fields, in order, to bytes that start with ``prefix``."""
    compiler = _Compiler(schema)
    names = [f"f{i}" for i in range(len(schema["fields"]))]
    parts = [compiler.write(field["type"], name) for field, name in zip(schema["fields"], names, strict=True)]
    head = f"{compiler.constant(prefix)}, " if prefix else ""
    source = f"def encode(t):\n    {', '.join(names)}, = t\n    return b''.join(({head}{', '.join(parts)},))\n"
    return _make(source, "encode", compiler.constants)


def compile_decoder(writer: Schema, reader: Schema, kind: Any, kinds: Mapping[str, Any]) -> Callable[[bytes, int], Any]:
    """A function from (bytes, position) to ``kind``, for records written with one schema and read as another.

    Args:
        writer: the schema of the bytes.
        reader: the newest schema; its fields, in order, are ``kind``'s.
        kind: NamedTuple class to make.
        kinds: enum or tuple class per field name, where there is one.
    """
    decode = _compile_reader(writer, kind, reader, kinds)

    def decode_value(data: bytes, position: int = 0) -> Any:  # Any: whatever ``kind`` is
        return decode(data, position)[0]

    return decode_value


def _compile_reader(
    writer: Schema, kind: Any, reader: Schema | None = None, kinds: Mapping[str, Any] | None = None
) -> Callable[[bytes, int], tuple[Any, int]]:
    reader = reader or writer
    kinds = kinds if kinds is not None else _field_kinds(kind, writer)
    compiler = _Compiler(writer)
    lines, written = [], {}
    for i, field in enumerate(writer["fields"]):
        written[field["name"]] = f"f{i}"
        lines += compiler.read(field["type"], f"f{i}", kinds.get(field["name"]))
    values = [
        written.get(field["name"]) or compiler.constant(_default(field, kinds.get(field["name"])))
        for field in reader["fields"]
    ]
    make = compiler.constant(kind)
    source = "def decode(d, p):\n" + "\n".join(lines) + f"\n    return {make}({', '.join(values)}), p\n"
    return _make(source, "decode", compiler.constants)


def _default(field: Mapping[str, Any], kind: Any) -> object:
    value = field["default"]
    if isinstance(value, list):
        return tuple(value)
    return kind(value) if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum) else value


def _field_kinds(kind: Any, schema: Schema) -> Mapping[str, Any]:
    """Enum classes of a nested tuple's fields, from its resolved annotations."""
    from typing import get_type_hints  # only while compiling

    hints = get_type_hints(kind)
    return {field["name"]: enum_in(hints[name]) for field, name in zip(schema["fields"], kind._fields, strict=True)}


def enum_in(hint: Any) -> Any:
    """The enum class in an annotation such as ``ReasonCode | None``, else None. Several: None (kept as text)."""
    found = [t for t in (hint, *getattr(hint, "__args__", ())) if isinstance(t, type) and issubclass(t, Enum)]
    return found[0] if len(found) == 1 else None


def _make(source: str, name: str, constants: dict[str, Any]) -> Callable[..., Any]:
    scope = dict(constants)
    exec(compile(source, f"<avro {name}>", "exec"), scope)  # noqa: S102 - source is made above, from our own schemas
    function: Callable[..., Any] = scope[name]
    return function
