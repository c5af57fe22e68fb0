"""Our compiled Avro against fastavro, for every schema we ship: same bytes out, same values in."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_engine.errors import DecodeError
from broker_engine.wire.avro import compile_decoder, compile_encoder, enum_in, read_long, zigzag
from broker_engine.wire.codecs import CODECS, FRAME_BYTES, Codec
from broker_engine.wire.schemas import registered_schemas, schema_folder, versions

SUBJECTS = sorted(CODECS)


def values_of(schema: Any, kind: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a field type, with enum members where the record has them."""
    if isinstance(schema, list):
        return st.none() | values_of(schema[1], kind, named)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, str):
        words = [str(member.value) for member in kind] if isinstance(kind, type) else []
        return {
            "string": st.sampled_from(list(kind)) if words else st.text(max_size=20),
            "bytes": st.binary(max_size=40),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "boolean": st.booleans(),
        }[schema]
    if schema["type"] == "enum":
        named[schema["name"]] = schema
        return st.sampled_from([member for member in kind if member.value in schema["symbols"]])
    assert schema["type"] == "array"
    items = schema["items"]
    fields = items["fields"]
    hints = get_type_hints(kind)
    parts = [values_of(f["type"], enum_in(hints[name]), named) for f, name in zip(fields, kind._fields, strict=True)]
    return st.lists(st.tuples(*parts).map(kind._make), max_size=3).map(tuple)


def records_of(codec: Codec[Any]) -> st.SearchStrategy[Any]:
    schema = versions(codec.subject)[-1].plain
    named: dict[str, Any] = {}
    parts = [values_of(field["type"], codec._kinds[field["name"]], named) for field in schema["fields"]]
    return st.tuples(*parts).map(codec.kind._make)


def as_dicts(schema: Any, record: Any) -> dict[str, Any]:
    """A tuple as fastavro takes it."""
    result = {}
    for field, value in zip(schema["fields"], record, strict=True):
        is_array = isinstance(field["type"], dict) and field["type"]["type"] == "array"
        result[field["name"]] = [as_dicts(field["type"]["items"], item) for item in value] if is_array else value
    return result


@pytest.mark.parametrize("subject", SUBJECTS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_bytes_are_those_that_fastavro_writes(subject: str, data: st.DataObject) -> None:
    codec = CODECS[subject]
    record = data.draw(records_of(codec))
    schema = versions(subject)[-1].plain

    encoded = codec.encode(record)

    expected = io.BytesIO()
    fastavro.schemaless_writer(expected, fastavro.parse_schema(schema), as_dicts(schema, record))
    assert encoded[FRAME_BYTES:] == expected.getvalue()
    assert codec.decode(encoded) == record


@pytest.mark.parametrize("subject", SUBJECTS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_bytes_are_a_decode_error_and_nothing_else(subject: str, data: st.DataObject) -> None:
    codec = CODECS[subject]
    encoded = bytearray(codec.encode(data.draw(records_of(codec))))
    cut = data.draw(st.integers(0, len(encoded)))
    flips = data.draw(st.lists(st.integers(0, len(encoded) - 1), max_size=4))
    for place in flips:
        encoded[place] ^= data.draw(st.integers(1, 255))

    try:
        record = codec.decode(bytes(encoded[:cut]))
    except DecodeError:
        return

    assert isinstance(record, codec.kind)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_record_has_its_schema_s_fields_in_order(subject: str) -> None:
    """A field added to one side only would shift every value behind it."""
    codec = CODECS[subject]

    fields = [field["name"] for field in versions(subject)[-1].schema["fields"]]

    assert len(fields) == len(codec.kind._fields)
    assert fields == [in_json(name) for name in codec.kind._fields]


def in_json(name: str) -> str:
    """updated_at_ms is updatedAt on the wire (a timestamp-millis); is_retried is retried."""
    bare = name[:-3] if name.endswith(("_at_ms", "_before_ms", "log_time_ms")) and name != "log_time_ms" else name
    first, *rest = bare.removeprefix("is_").split("_")
    return first + "".join(part.title() for part in rest)


def test_unknown_frames_are_told_apart() -> None:
    codec = CODECS["task-state"]
    other = CODECS["checkpoint"].frame

    for data, words in ((b"", "nothing"), (b"hello", "framed"), (b"\0\0\0\xff\xff", "unknown"), (other, "checkpoint")):
        with pytest.raises(DecodeError, match=words):
            codec.decode(data)
    with pytest.raises(DecodeError, match="no value"):
        codec.decode(None)


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_come_back(number: int) -> None:
    assert read_long(zigzag(number), 0) == (number, len(zigzag(number)))


def test_an_old_record_gets_the_defaults_of_newer_fields_and_loses_unknown_ones() -> None:
    class Kind(NamedTuple):
        name: str
        added: int | None = None
        also: str = ""

    old = {
        "type": "record",
        "name": "K",
        "fields": [{"name": "gone", "type": "long"}, {"name": "name", "type": "string"}],
    }
    new = {
        "type": "record",
        "name": "K",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "added", "type": ["null", "long"], "default": None},
            {"name": "also", "type": "string", "default": "x"},
        ],
    }
    written = compile_encoder(old)((7, "n"))

    assert compile_decoder(old, new, Kind, {})(written, 0) == Kind("n", None, "x")


class TestReleasedSchemas:
    """The rules of schemas/README.md."""

    def test_every_file_is_in_the_index_with_its_fingerprint(self) -> None:
        index = json.loads((schema_folder() / "index.json").read_text())["schemas"]

        for entry in index:
            schema = registered_schemas()[entry["id"]].schema
            assert fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO") == entry["crc64"], entry["subject"]
        files = {
            (folder.name, file.name)
            for folder in schema_folder().iterdir()
            if folder.is_dir()
            for file in folder.iterdir()
        }
        assert files == {(entry["subject"], f"v{entry['version']}.avsc") for entry in index}
        assert len({entry["id"] for entry in index}) == len(index)

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_each_version_reads_every_other(self, subject: str) -> None:
        """FULL_TRANSITIVE: old readers meet new records, new readers old ones."""
        for writer in versions(subject):
            for reader in versions(subject):
                sample = _sample(writer.schema)
                data = io.BytesIO()
                fastavro.schemaless_writer(data, fastavro.parse_schema(writer.schema), sample)
                data.seek(0)
                fastavro.schemaless_reader(
                    data, fastavro.parse_schema(writer.schema), fastavro.parse_schema(reader.schema)
                )

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_enums_and_optional_fields_have_defaults(self, subject: str) -> None:
        for schema in versions(subject):
            for field in schema.schema["fields"]:
                if isinstance(field["type"], list):
                    assert field["type"][0] == "null", field["name"]
                    assert field["default"] is None, field["name"]
                if isinstance(field["type"], dict) and field["type"].get("type") == "enum":
                    assert field["type"]["default"] == "UNKNOWN", field["name"]

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_golden_bytes_decode_for_ever(self, subject: str) -> None:
        golden = json.loads((Path(__file__).parent / "golden.json").read_text())

        for version, example in golden[subject].items():
            record = json.loads(json.dumps(CODECS[subject].decode(bytes.fromhex(example["hex"])), default=_plain))
            written, newest = (
                [field["name"] for field in versions(subject)[number].plain["fields"]]
                for number in (int(version) - 1, -1)
            )
            found = dict(zip(newest, record, strict=True))
            assert [found[name] for name in written] == example["record"], version


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def _sample(schema: Any) -> dict[str, Any]:
    sample: dict[str, Any] = generate_one(schema)
    return sample
