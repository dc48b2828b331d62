"""ACL 1.0 over a socket: who passes, with which words others are refused, and what admins and files change."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parent))

from acl_server import LETTERS, Ask, answers, raw_answer

from mqfast.broker.acl.acl_filter import AclFilter
from mqfast.broker.acl.plain_files import PlainFiles
from mqfast.broker.acl.plain_processor import PlainAclProcessor
from mqfast.errors import ConfigError
from mqfast.remoting.command import RemotingCommand, encode
from mqfast.remoting.signature import signature_of

JAVA = "org.apache.rocketmq.acl.common.AclException: "
USER, ADMIN = ("RocketMQ", "12345678"), ("rocketmq2", "12345678")
# As distribution/conf/plain_acl.yml of RocketMQ has it, without its global white list.
CONTENT = {
    "accounts": [
        {
            "accessKey": "RocketMQ",
            "secretKey": "12345678",
            "whiteRemoteAddress": None,
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB", "topicP=PUB"],
            "groupPerms": ["groupA=DENY", "groupB=PUB|SUB", "groupC=SUB"],
        },
        {"accessKey": "rocketmq2", "secretKey": "12345678", "admin": True},
    ]
}


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.fixture
def files(tmp_path: Path) -> PlainFiles:
    return PlainFiles(write(tmp_path / "plain_acl.yml", CONTENT), now_ms=lambda: 1234)


def send(topic: str, user: tuple[str, str] | None = USER, code: int = 310) -> Ask:
    return Ask(code, {"a": "producers", "b": topic}, b"body", user)


def heartbeat(group: str, topic: str) -> Ask:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic}, {"topic": f"%RETRY%{group}"}]}
    return Ask(34, {}, json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode(), USER)


def refused(what: str) -> tuple[int, str, bytes]:
    return 1, JAVA + what, b""


PASSED = (0, "passed", b"")
CASES = [
    (send("topicB"), PASSED),
    (send("topicP"), PASSED),
    (send("topicC"), refused("No default permission for topic:topicC")),
    (send("topicA"), refused("No default permission for topic:topicA")),
    (send("other"), refused("No default permission for topic:other")),
    (send("other", code=320), refused("No default permission for topic:other")),
    (send("topicB", code=320), PASSED),
    (Ask(10, {"producerGroup": "p", "topic": "other"}, b"", USER), refused("No default permission for topic:other")),
    (Ask(324, {"producerGroup": "p", "topic": "other"}, b"", USER), refused("No default permission for topic:other")),
    (send("RMQ_SYS_TRACE_TOPIC"), PASSED),
    (send("%RETRY%groupC"), PASSED),
    (send("%RETRY%groupA"), refused("No default permission for group:groupA")),
    (send("topicA", ADMIN), PASSED),
    (Ask(11, {"topic": "topicC", "consumerGroup": "groupC"}, b"", USER), PASSED),
    (Ask(11, {"topic": "topicC", "consumerGroup": "any"}, b"", USER), PASSED),
    (
        Ask(11, {"topic": "topicP", "consumerGroup": "groupC"}, b"", USER),
        refused("No default permission for topic:topicP"),
    ),
    (
        Ask(361, {"topic": "topicC", "consumerGroup": "groupA"}, b"", USER),
        refused("No default permission for group:groupA"),
    ),
    (heartbeat("groupC", "topicB"), PASSED),
    (heartbeat("groupC", "topicP"), refused("No default permission for topic:topicP")),
    (heartbeat("groupA", "topicB"), refused("No default permission for group:groupA")),
    (
        Ask(15, {"topic": "topicB", "consumerGroup": "groupA"}, b"", USER),
        refused("No default permission for group:groupA"),
    ),
    (Ask(36, {"group": "groupA"}, b"", USER), refused("No default permission for group:groupA")),
    (Ask(38, {"consumerGroup": "groupA"}, b"", USER), refused("No default permission for group:groupA")),
    (Ask(35, {"consumerGroup": "groupA"}, b"", USER), refused("No default permission for group:groupA")),
    (Ask(35, {"producerGroup": "p"}, b"", USER), PASSED),
    (Ask(12, {"topic": "topicP"}, b"", USER), refused("No default permission for topic:topicP")),
    (
        Ask(222, {"topic": "topicB", "group": "groupA"}, b"", USER),
        refused("No default permission for group:groupA"),
    ),
    (Ask(30, {"topic": "topicA"}, b"", USER), refused("No default permission for topic:topicA")),
    (Ask(30, {"topic": "topicC"}, b"", USER), PASSED),
    (Ask(30, {"topic": "topicP"}, b"", USER), PASSED),
    (Ask(30, {"topic": "%DLQ%groupA"}, b"", USER), refused("No default permission for group:groupA")),
    (Ask(11, {"topic": "%DLQ%groupC", "consumerGroup": "any"}, b"", USER), PASSED),
    *(
        (
            Ask(code, {"topic": "t"}, b"", USER),
            refused(f"Need admin permission for request code={code}, but accessKey=RocketMQ is not"),
        )
        for code in (17, 25, 215, 200, 207, 50, 51, 53, 54, 18, 225, 306, 316, 329, 3001, 21, 26, 28, 43, 201, 305, 317)
    ),
    (Ask(17, {"topic": "t"}, b"", ADMIN), PASSED),
    (send("topicB", None), refused("No accessKey is configured")),
    (send("topicB", ("nobody1", "12345678")), refused("No acl config for nobody1")),
    (send("topicB", ("RocketMQ", "87654321")), refused("Check signature failed for accessKey=RocketMQ")),
    (Ask(34, {}, b"no json", USER), refused("field body: expected JSON (invalid literal (byte 1)), found 7 bytes")),
]


def test_who_may_do_what(files: PlainFiles) -> None:
    found = answers(AclFilter(files), *(ask for ask, _ in CASES))
    for (ask, wanted), got in zip(CASES, found, strict=True):
        if ask.body == b"no json":
            assert got[0] == 1
            assert str(got[1]).startswith(JAVA + "field body: expected JSON")
        else:
            assert got == wanted, ask


def test_a_changed_field_or_body_breaks_the_signature(files: PlainFiles) -> None:
    signed = {**{name: str(value) for name, value in LETTERS.items()}, "b": "topicB", "AccessKey": "RocketMQ"}
    signed["Signature"] = signature_of(signed, b"body", "12345678")
    found = answers(
        AclFilter(files),
        Ask(310, signed, b"body"),
        Ask(310, {**signed, "b": "topicP"}, b"body"),
        Ask(310, signed, b"Body"),
        Ask(310, {**signed, "more": "x"}, b"body"),
        Ask(310, {k: v for k, v in signed.items() if k != "Signature"}, b"body"),
    )
    assert found == [PASSED, *[refused("Check signature failed for accessKey=RocketMQ")] * 4]


def test_the_signature_is_javas() -> None:
    """As openssl computes it: printf RocketMQtopicBbody | openssl dgst -sha1 -hmac 12345678 -binary | base64."""
    fields = {"b": "topicB", "AccessKey": "RocketMQ", "Signature": "not of it"}
    assert signature_of(fields, b"body", "12345678") == "v0YriMTIyD3eZeJEKSGeetzv6us="
    assert signature_of(fields, [b"bo", memoryview(b"dy")], "12345678") == "v0YriMTIyD3eZeJEKSGeetzv6us="


def test_a_query_by_key_may_sign_before_or_behind_its_flag(files: PlainFiles) -> None:
    flag = {"_UNIQUE_KEY_QUERY": "true"}
    found = answers(
        AclFilter(files),
        Ask(12, {"topic": "topicB"}, b"", USER, version=399, late=flag),
        Ask(12, {"topic": "topicB", **flag}, b"", USER, version=477),
    )
    assert found == [PASSED, PASSED]


@pytest.mark.parametrize("where", ["globalWhiteRemoteAddresses", "whiteRemoteAddress"])
def test_a_white_address_needs_no_signature(tmp_path: Path, where: str) -> None:
    account = {"accessKey": "RocketMQ", "secretKey": "12345678"}
    content = {"accounts": [{**account, "whiteRemoteAddress": "127.0.0.*"}]}
    if where == "globalWhiteRemoteAddresses":
        content = {where: ["10.1.2.3", "127.0.0.1"], "accounts": [account]}
    guard = AclFilter(PlainFiles(write(tmp_path / "plain_acl.yml", content)))
    without_key, unsigned = Ask(17, {}), Ask(310, {"b": "t", "AccessKey": "RocketMQ"})
    wanted = PASSED if where == "globalWhiteRemoteAddresses" else refused("No accessKey is configured")
    assert answers(guard, without_key, unsigned) == [wanted, PASSED]


@pytest.mark.parametrize("trusts_proxy", [False, True])
def test_a_proxy_header_gives_a_white_address_only_if_trusted(tmp_path: Path, trusts_proxy: bool) -> None:
    content = {"globalWhiteRemoteAddresses": ["10.1.2.3"], "accounts": CONTENT["accounts"]}
    guard = AclFilter(PlainFiles(write(tmp_path / "plain_acl.yml", content)), trusts_proxy=trusts_proxy)
    answer = raw_answer(guard, b"PROXY TCP4 10.1.2.3 10.9.9.9 4000 10911\r\n" + encode(RemotingCommand(17, {})))
    assert answer.code == (0 if trusts_proxy else 1)
    assert raw_answer(guard, encode(RemotingCommand(17, {}))).code == 1


def test_a_changed_file_counts_and_a_broken_one_does_not(files: PlainFiles, caplog: pytest.LogCaptureFixture) -> None:
    path = files.file

    def before(number: int) -> None:
        if number == 1:
            write(path, {"accounts": [{**CONTENT["accounts"][0], "secretKey": "another1"}]})
            assert files.reload_if_changed()
        if number == 3:
            write(path, "accounts: [")
            os.utime(path, ns=(1, 1))
            assert not files.reload_if_changed()
            assert not files.reload_if_changed()

    new = ("RocketMQ", "another1")
    found = answers(
        AclFilter(files), send("topicB"), send("topicB"), send("topicB", new), send("topicB", new), before=before
    )
    assert found == [PASSED, refused("Check signature failed for accessKey=RocketMQ"), PASSED, PASSED]
    assert "the accounts of before stay in force: " in caplog.text
    assert caplog.text.count("stay in force") == 1


def test_files_beside_each_other(tmp_path: Path) -> None:
    first = {"accounts": [{"accessKey": "account1", "secretKey": "from-first", "defaultTopicPerm": "PUB"}]}
    second = {
        "accounts": [
            {"accessKey": "account1", "secretKey": "from-main"},
            {"accessKey": "account2", "secretKey": "1234567", "defaultTopicPerm": "PUB"},
        ]
    }
    write(tmp_path / "acl" / "sub" / "one.yaml", first)
    guard = AclFilter(PlainFiles(write(tmp_path / "plain_acl.yml", second)))
    found = answers(guard, send("t", ("account1", "from-first")), send("t", ("account2", "1234567")))
    assert found == [PASSED, PASSED]


def test_an_exception_of_the_acl_filter_refuses_the_request_and_keeps_the_connection(
    files: PlainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqfast.broker.acl.plain.is_signed_with", lambda *_: 1 // 0)
    found = answers(AclFilter(files), send("topicB"), send("topicB", None))
    assert [code for code, _, _ in found] == [1, 1]
    assert str(found[0][1]).startswith("ZeroDivisionError")
    assert found[1] == refused("No accessKey is configured")


def test_numbers_are_text_as_in_java(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", "accounts:\n- accessKey: 12345678\n  secretKey: 87654321\n  admin: yes\n")
    files = PlainFiles(path)
    number = ("12345678", "87654321")
    assert answers(AclFilter(files), send("t", number), Ask(17, {"topic": "t"}, b"", number)) == [PASSED, PASSED]
    files.put_account({"accessKey": "12345678", "secretKey": "another1", "admin": True})
    assert len(yaml.safe_load(path.read_text())["accounts"]) == 1
    assert files.delete_account("12345678")


@pytest.mark.parametrize(
    "content, says",
    [
        ("a: [", "expected YAML"),
        ("[1, 2]", "expected a mapping"),
        ({"accounts": [{"accessKey": "short", "secretKey": "12345678"}]}, "length should longer than 6"),
        ({"accounts": [{"accessKey": "RocketMQ"}]}, "length should longer than 6"),
        ({"accounts": [{"accessKey": "RocketMQ", "secretKey": "12345678", "topicPerms": ["t"]}]}, "Parse resource"),
        ({"globalWhiteRemoteAddresses": ["10.1"]}, "white list"),
        ({"accounts": ["x"]}, "expected a mapping for each"),
        ({"accounts": [{"accessKey": "RocketMQ", "secretKey": "12345678", "whiteRemoteAddress": 10.1}]}, "white list"),
    ],
)
def test_a_plain_acl_file_that_prevents_a_start_of_java_is_an_error(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PlainFiles(write(tmp_path / "plain_acl.yml", content))
    with pytest.raises(ConfigError, match="found no such file"):
        PlainFiles(tmp_path / "none" / "plain_acl.yml")


def test_an_empty_file_refuses_everybody(tmp_path: Path) -> None:
    guard = AclFilter(PlainFiles(write(tmp_path / "plain_acl.yml", "")))
    assert answers(guard, send("t", None), send("t")) == [
        refused("No accessKey is configured"),
        refused("No acl config for RocketMQ"),
    ]


def test_admins_change_accounts_and_white_list(files: PlainFiles) -> None:
    processor = PlainAclProcessor(files, address="h:1", name="broker-a", cluster="c")
    new = {
        "accessKey": "account3",
        "secretKey": "12345678",
        "admin": "false",
        "defaultTopicPerm": "DENY",
        "topicPerms": "t1=PUB,t2=PUB|SUB",
    }
    signer = ("account3", "12345678")
    path = str(files.file)
    found = answers(
        AclFilter(files),
        Ask(50, new, b"", ADMIN),
        send("t1", signer),
        send("t3", signer),
        Ask(50, {**new, "topicPerms": "t3=PUB"}, b"", ADMIN),
        send("t3", signer),
        Ask(50, {**new, "accessKey": "four"}, b"", ADMIN),
        Ask(50, {**new, "topicPerms": "t3=WRITE"}, b"", ADMIN),
        Ask(52, {}, b"", ADMIN),
        Ask(51, {"accessKey": "account3"}, b"", ADMIN),
        send("t3", signer),
        Ask(51, {"accessKey": "account3"}, b"", ADMIN),
        Ask(53, {"globalWhiteAddrs": "10.1.1.1,10.1.1.2", "aclFileFullPath": "/etc/passwd"}, b"", ADMIN),
        Ask(53, {"globalWhiteAddrs": "10.1.1"}, b"", ADMIN),
        Ask(53, {"globalWhiteAddrs": "10.1.1.1,127.0.0.1"}, b"", ADMIN),
        Ask(54),
        register=processor.register,
    )
    codes = [code for code, _, _ in found]
    assert codes == [0, 0, 1, 0, 0, 209, 209, 0, 0, 1, 210, 211, 211, 0, 0]
    assert "length should longer than 6" in str(found[5][1])
    assert "Parse resource permission error for t3=WRITE" in str(found[6][1])
    assert found[10][1] == "The accesskey[account3] corresponding to accessConfig has been deleted failed."
    assert found[11][1] == "The globalWhiteAddresses[10.1.1.1,10.1.1.2] has been updated failed."
    shown = json.loads(found[14][2])
    assert not [one for one in CONTENT["accounts"] if one["secretKey"].encode() in found[14][2]], "no secret leaves"
    assert shown["globalWhiteAddrs"] == ["10.1.1.1", "127.0.0.1"]
    assert [one["accessKey"] for one in shown["plainAccessConfigs"]] == ["RocketMQ", "rocketmq2"]
    assert shown["plainAccessConfigs"][0]["topicPerms"] == CONTENT["accounts"][0]["topicPerms"]
    # The file says the same, to Java and to the next start.
    kept = yaml.safe_load(Path(path).read_text())
    assert kept["dataVersion"] == [{"counter": 4, "timestamp": 1234}]
    assert AclFilter(PlainFiles(files.file)) is not None
    assert not files.reload_if_changed(), "its own change is none of others"
    assert list(files.versions()) == [path]


def test_a_file_of_secrets_is_for_its_owner(files: PlainFiles) -> None:
    os.chmod(files.file, 0o640)
    files.set_white_list(["10.1.1.1"], None)
    assert files.file.stat().st_mode & 0o777 == 0o640
