"""The JSON dialect of config/: against files of real brokers, and round trips of whatever can be in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile, InternalError
from mqfast.util import fastjson

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = (
    "topics",
    "subscriptionGroup",
    "consumerOffset",
    "lmqConsumerOffset",
    "delayOffset",
    "consumerFilter",
    "consumerOrderInfo",
)
FILES = sorted(path for name in NAMES for path in GOLDEN.glob(f"*/*/store/config/{name}.json*"))

texts = st.text(st.characters(exclude_categories=["Cs"]))
i64 = st.integers(-(2**63), 2**63 - 1)
scalars = st.one_of(st.none(), st.booleans(), i64, texts)
keys = st.one_of(texts, i64)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)


def test_there_are_files_of_all_releases() -> None:
    assert len(FILES) > 100
    assert {path.relative_to(GOLDEN).parts[0] for path in FILES} == {"golden-5.5.0", "golden-5.3.3", "golden-4.9.7"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.relative_to(GOLDEN).parts))
def test_files_of_real_brokers_come_back_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    value = fastjson.loads(data, str(path))
    again = fastjson.dumps(value)
    if "golden-5.5.0" in path.parts:
        assert again == data
    else:  # the same but for line breaks
        assert re.sub(rb"[\n\t]", b"", again) == re.sub(rb"[\n\t]", b"", data)
    assert fastjson.loads(again) == value


@given(st.dictionaries(keys, values, max_size=5))
def test_round_trip(value: dict[str | int, object]) -> None:
    data = fastjson.dumps(value)
    assert fastjson.loads(data) == value
    assert fastjson.dumps(fastjson.loads(data)) == data


def test_trap_number_keys_are_bare() -> None:
    value = fastjson.loads(b'{"offsetTable":{"T@g":{0:5, -1 : 6\n\t},"1":{"2":3}}}')
    assert value == {"offsetTable": {"T@g": {0: 5, -1: 6}, "1": {"2": 3}}}
    assert (
        fastjson.dumps(value)
        == b'{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:5,\n\t\t\t-1:6\n\t\t},\n\t\t"1":{\n\t\t\t"2":3\n\t\t}\n\t}\n}'
    )


def test_quoted_keys_never_count_as_bare() -> None:
    assert fastjson.loads(b'{"\\ue000":1,"\xee\x80\x811":2,3:4,"\\uE0025":6}') == {
        "\ue000": 1,
        "\ue0011": 2,
        3: 4,
        "\ue0025": 6,
    }


def test_strings_with_braces_and_colons_stay_strings() -> None:
    value = {'a{1:2},"': '{0:1,} \\" [', "b": ["x:1,", "]"]}
    assert fastjson.loads(fastjson.dumps(value)) == value


def test_escapes() -> None:
    assert fastjson.dumps({"k": '"\\/\b\t\n\f\r\x00\x0b\x1f\x7f\x9f\xa0\u2028é😀'}) == (
        '{\n\t"k":"\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u000B\\u001F\\u007F\\u009F\xa0\\u2028é😀"\n}'.encode()
    )


def test_lists() -> None:
    text = b'{\n\t"list":[\n\t\t1,\n\t\t"a"\n\t],\n\t"none":[]\n}'
    assert fastjson.dumps({"list": [1, "a"], "none": []}) == text


def test_bare_names_and_surplus_commas_are_accepted() -> None:
    assert fastjson.loads(b'\xef\xbb\xbf {name:1, $x:[1,2,], "b":{} , }\n ') == {"name": 1, "$x": [1, 2], "b": {}}


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (b"[1]", 0),
        (b'{"a":1', 6),
        (b'{"a":1}}', 7),
        (b'{"a":1} x', 8),
        ('{"é":{0:1,1:2},"b" 5}'.encode(), 20),
        (b'{"a":"x', 5),
        (b"\x00" * 10, 0),
        (b'{"a":"\xff"}', 6),
        (b'{"a":' * 65 + b"1" + b"}" * 65, 5 * 64),
    ],
)
def test_damage_is_reported_with_its_byte(data: bytes, offset: int) -> None:
    with pytest.raises(CorruptFile, match=r"file some/file\.json") as caught:
        fastjson.loads(data, "some/file.json")
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "data", [b'{"a":' + b"9" * 5000 + b"}", b'{"a":9223372036854775808}', b"{99999999999999999999:1}", b'{"a":NaN}']
)
def test_numbers_beyond_64_bits_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        fastjson.loads(data)


def test_deep_nesting_neither_crashes_nor_takes_long() -> None:
    for opening in (b"[", b'{"a":'):
        with pytest.raises(CorruptFile):
            fastjson.loads(opening * 300_000)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = fastjson.loads(data)
    except CorruptFile:
        return
    assert isinstance(value, dict)


@given(st.text(st.sampled_from('{}[]",:01a- \\'), max_size=30))
def test_any_structure_is_read_or_refused(text: str) -> None:
    try:
        value = fastjson.loads(text.encode())
    except CorruptFile:
        return
    assert fastjson.loads(fastjson.dumps(value)) == value


def test_values_without_a_json_form_are_internal_errors() -> None:
    with pytest.raises(InternalError, match="found set"):
        fastjson.dumps({"a": {1}})


def test_text_that_leaves_no_character_for_a_mark() -> None:
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(CorruptFile, match="every private-use character"):
        fastjson.loads(f'{{1:"{every}"}}'.encode())
    assert fastjson.loads(f'{{1:"{every[1:]}"}}'.encode()) == {1: every[1:]}


def test_values_that_go_too_deep_are_not_written() -> None:
    value: object = 1
    for _ in range(fastjson.DEPTH_MAX + 2):
        value = [value]
    with pytest.raises(InternalError, match="levels"):
        fastjson.dumps({"deep": value})
