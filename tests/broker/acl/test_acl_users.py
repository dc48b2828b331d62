"""ACL 2.0 over a socket: users, rules, the words of the refusals, and what mqadmin's requests change and show."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from acl_server import Ask, answers

from mqfast.broker.acl.acl_filter import AclFilter
from mqfast.broker.acl.auth_processor import AuthProcessor
from mqfast.broker.acl.policies import Acl, Policies, Policy, PolicyEntry
from mqfast.broker.acl.required_permissions import of_topic
from mqfast.broker.acl.terms import Action
from mqfast.broker.acl.users import User, Users
from mqfast.errors import CallRefused, CorruptFile

ROOT, ALICE = ("root", "root-password"), ("alice", "alice-password")
PASSED = (0, "passed", b"")


def acl(
    resource: str, actions: str, decision: str = "Allow", kind: str | None = None, ips: list[str] | None = None
) -> Acl:
    return Acl("User:alice", [Policy(kind, [PolicyEntry(resource, actions.split(","), ips, decision)])])


class Setup:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.users = Users(work / "config" / "authUsers.json")
        self.policies = Policies(work / "config" / "authAcls.json", "cluster-a")

    def guard(self, **more: Any) -> AclFilter:
        return AclFilter(None, self.users, self.policies, **more)

    def ask(self, *asks: Ask, **more: Any) -> list[tuple[int, str | None, bytes]]:
        processor = AuthProcessor(self.users, self.policies, is_checked=True)
        return answers(self.guard(**more), *asks, register=processor.register)


@pytest.fixture
def auth(tmp_path: Path) -> Setup:
    found = Setup(tmp_path)
    found.users.create(User(*ROOT, "Super"))
    found.users.create(User(*ALICE))
    return found


def send(topic: str, user: tuple[str, str] | None = ALICE) -> Ask:
    return Ask(310, {"a": "producers", "b": topic}, b"body", user)


def no_rule(resource: str, why: str = "no matched policies.") -> tuple[int, str, bytes]:
    return 16, f"User:alice has no permission to access {resource} from 127.0.0.1, {why}", b""


def denied(resource: str) -> tuple[int, str, bytes]:
    return no_rule(resource, "the decision is deny.")


def test_only_signed_requests_of_users_are_served(auth: Setup) -> None:
    auth.users.create(User("bob", "bob-password", "Normal", "disable"))
    found = auth.ask(
        send("t", ROOT), send("t", None), send("t", ("eve", "x")), send("t", ("bob", "bob-password")),
        send("t", ("alice", "wrong")), Ask(310, {"b": "t", "AccessKey": "alice"}),
    )  # fmt: skip
    assert found == [
        PASSED,
        (16, "username cannot be null.", b""),
        (16, "User:eve is not found.", b""),
        (16, "User:bob is disabled.", b""),
        (16, "check signature failed.", b""),
        (16, "check signature failed.", b""),
    ]


def test_codes_that_need_no_user_or_no_rule(auth: Setup) -> None:
    users = Users(auth.work / "config" / "authUsers.json", whitelist=[35])
    guard = AclFilter(None, users, auth.policies, authorization_whitelist=[310, 35])
    assert answers(guard, Ask(35, {"consumerGroup": "g"}), send("t"), send("t", None)) == [
        PASSED,
        PASSED,
        (16, "username cannot be null.", b""),
    ]


@pytest.mark.parametrize(
    "rules, asked, wanted",
    [
        ([acl("Topic:t1", "Pub")], send("t1"), PASSED),
        ([acl("Topic:t1", "Pub")], send("t2"), no_rule("Topic:t2")),
        ([acl("Topic:t1", "Sub")], send("t1"), no_rule("Topic:t1")),
        ([acl("Topic:t1", "All")], send("t1"), PASSED),
        ([acl("*", "pub")], send("t1"), PASSED),
        ([acl("Topic:*", "PUB")], send("t1"), PASSED),
        ([acl("Group:*", "Pub")], send("t1"), no_rule("Topic:t1")),
        ([acl("Topic:t*", "Pub")], send("t1"), PASSED),
        ([acl("Topic:t*", "Pub"), acl("Topic:t1", "Pub", "Deny")], send("t1"), denied("Topic:t1")),
        ([acl("Topic:t*", "Pub", "Deny"), acl("Topic:t1", "Pub")], send("t1"), PASSED),
        ([acl("Topic:t*", "Pub", "Deny"), acl("Topic:to*", "Pub")], send("top"), PASSED),
        ([acl("*", "Pub", "Deny"), acl("Topic:*", "Pub")], send("t1"), PASSED),
        ([acl("Topic:t1", "Pub", "Deny", "Default"), acl("Topic:*", "Pub")], send("t1"), PASSED),
        ([acl("Topic:t1", "Pub", "Allow", "Default")], send("t1"), PASSED),
        ([acl("Topic:t1", "Pub", ips=["127.0.0.0/8"])], send("t1"), PASSED),
        ([acl("Topic:t1", "Pub", ips=["10.0.0.0/8", "10.1.1.1"])], send("t1"), no_rule("Topic:t1")),
        ([acl("Group:g", "Sub")], send("%RETRY%g"), PASSED),
        ([acl("Group:g", "Sub")], Ask(11, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", ALICE), PASSED),
        ([acl("Group:g", "Sub")], Ask(11, {"topic": "t", "consumerGroup": "g"}, b"", ALICE), no_rule("Topic:t")),
        ([acl("Topic:t", "Sub")], Ask(361, {"topic": "t", "consumerGroup": "g"}, b"", ALICE), no_rule("Group:g")),
        ([acl("Topic:t", "Get")], Ask(30, {"topic": "t"}, b"", ALICE), PASSED),
        ([acl("Topic:t", "Pub")], Ask(30, {"topic": "t"}, b"", ALICE), no_rule("Topic:t")),
        ([acl("Topic:t", "Create")], Ask(17, {"topic": "t"}, b"", ALICE), PASSED),
        ([acl("Topic:t", "Create")], Ask(215, {"topic": "t"}, b"", ALICE), no_rule("Topic:t")),
        ([acl("Group:g", "Update")], Ask(200, {}, b'{"groupName":"g"}', ALICE), PASSED),
        ([acl("Group:g", "Get")], Ask(200, {}, b'{"groupName":"g"}', ALICE), no_rule("Group:g")),
        ([acl("Cluster:cluster-a", "Update")], Ask(25, {}, b"a=b", ALICE), PASSED),
        ([acl("Topic:*", "All")], Ask(25, {}, b"a=b", ALICE), no_rule("Cluster:cluster-a")),
        ([acl("Topic:*", "All")], Ask(26, {}, b"", ALICE), no_rule("Cluster:cluster-a")),
        (
            [acl("Group:g", "Sub")],
            Ask(41, {}, b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":0}]}', ALICE),
            no_rule("Topic:t"),
        ),
        ([acl("Topic:a", "Get")], Ask(208, {"topicList": "a;b", "consumerGroup": ""}, b"", ALICE), no_rule("Topic:b")),
        ([], Ask(34, {}, b"no json", ALICE), (16, "parse authorization context error.", b"")),
        ([], Ask(46, {}, b"{}", ALICE), no_rule("Group:")),
        ([acl("Topic:*", "All"), acl("Group:*", "All")], Ask(21, {}, b"", ALICE), no_rule("Cluster:cluster-a")),
        ([acl("Cluster:*", "Get")], Ask(21, {}, b"", ALICE), PASSED),
        (
            [acl("Topic:*", "All"), acl("Group:*", "All")],
            Ask(11, {"topic": "SCHEDULE_TOPIC_XXXX", "consumerGroup": "g"}, b"", ALICE),
            no_rule("Cluster:cluster-a"),
        ),
        ([acl("Topic:*", "All")], Ask(12, {"topic": "%DLQ%g"}, b"", ALICE), no_rule("Group:g")),
        ([acl("Topic:*", "All")], Ask(990_555, {}, b"", ALICE), no_rule("Cluster:cluster-a")),
    ],
)  # fmt: skip
def test_rules(auth: Setup, rules: list[Acl], asked: Ask, wanted: tuple[int, str, bytes]) -> None:
    for rule in rules:
        auth.policies.put("User:alice", rule)
    assert auth.ask(asked, asked._replace(user=ROOT)) == [wanted, PASSED]
    assert Setup(auth.work).ask(asked) == [wanted], "the files say the same"


def test_a_heartbeat_needs_all_of_its_groups_and_topics(auth: Setup) -> None:
    auth.policies.put("User:alice", acl("Group:g", "Sub"))
    consumer = {"groupName": "g", "subscriptionDataSet": [{"topic": "%RETRY%g"}, {"topic": "t"}]}
    beat = Ask(34, {}, json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode(), ALICE)
    assert auth.ask(beat) == [no_rule("Topic:t")]
    auth.policies.put("User:alice", acl("Topic:t", "Sub"))
    assert auth.ask(beat) == [PASSED]


def user(name: str, password: str | None = None, kind: str | None = None, status: str | None = None) -> bytes:
    given = {"username": name, "password": password, "userType": kind, "userStatus": status}
    return json.dumps({key: value for key, value in given.items() if value is not None}).encode()


def test_admins_keep_users(auth: Setup) -> None:
    auth.policies.put("User:alice", acl("Cluster:*", "All"))
    found = auth.ask(
        Ask(3001, {"username": "carl"}, user("carl", "carl-password"), ALICE),
        Ask(3001, {"username": "carl"}, user("carl", "carl-password"), ALICE),
        Ask(3001, {"username": "dora"}, user("dora"), ALICE),
        Ask(3001, {"username": "boss"}, user("boss", "x", "Super"), ALICE),
        Ask(3002, {"username": "root"}, user("root", "stolen"), ALICE),
        Ask(3002, {"username": "alice"}, user("alice", None, "super"), ALICE),
        Ask(3003, {"username": "root"}, b"", ALICE),
        Ask(3004, {"username": "carl"}, b"", ALICE),
        Ask(3004, {"username": "nobody"}, b"", ALICE),
        Ask(3002, {"username": "carl"}, user("carl", None, None, "disable"), ALICE),
        Ask(3002, {"username": "nobody"}, user("nobody", "x"), ALICE),
        Ask(3005, {"filter": "ar"}, b"", ALICE),
        Ask(3005, {}, b"", ALICE),
        Ask(3001, {"username": "boss"}, user("boss", "x", "Super"), ROOT),
        Ask(3003, {"username": "carl"}, b"", ALICE),
        Ask(3003, {"username": "carl"}, b"", ALICE),
        Ask(3001, {"username": " "}, user("x", "y"), ROOT),
    )
    only = "The super user can only be update by super user"
    carl = {"username": "carl", "userType": "Normal", "userStatus": "enable"}
    assert [(code, remark) for code, remark, _ in found] == [
        (0, None), (16, "The user is existed"), (16, "password can not be blank"),
        (1, "The super user can only be create by super user"), (16, only), (1, only), (16, only), (0, None), (0, None),
        (0, None), (16, "The user is not exist"), (0, None), (0, None), (0, None), (0, None), (0, None),
        (29, "The username is blank"),
    ]  # fmt: skip
    assert json.loads(found[7][2]) == carl
    assert found[8][2] == b""
    assert not [body for _, remark, body in found if b"password" in body or "-password" in str(remark)]
    assert json.loads(found[11][2]) == [{**carl, "userStatus": "disable"}]
    assert [one["username"] for one in json.loads(found[12][2])] == ["alice", "carl", "root"]
    again = Users(auth.work / "config" / "authUsers.json")
    assert [one.username for one in again.listed(None)] == ["alice", "boss", "root"]
    assert (auth.work / "config" / "authUsers.json").stat().st_mode & 0o777 == 0o600


def test_admins_keep_rules(auth: Setup) -> None:
    def rule(resource: str, actions: list[str], decision: str | None = "Allow", subject: str = "User:alice") -> bytes:
        entry = {"resource": resource, "actions": actions, "sourceIps": ["10.0.0.0/8"], "decision": decision}
        return json.dumps({"subject": subject, "policies": [{"entries": [entry]}]}).encode()

    who = {"subject": "User:alice"}
    found = auth.ask(
        Ask(3006, who, rule("Topic:t1", ["pub", "SUB"]), ROOT),
        Ask(3006, who, rule("Topic:t*", ["Pub"], "deny"), ROOT),
        Ask(3007, who, rule("Topic:t1", ["Get"]), ROOT),
        Ask(3009, who, b"", ROOT),
        Ask(3010, {"resourceFilter": "t*"}, b"", ROOT),
        Ask(3010, {"subjectFilter": "zed"}, b"", ROOT),
        Ask(3008, {**who, "resource": "Topic:t1"}, b"", ROOT),
        Ask(3009, who, b"", ROOT),
        Ask(3008, who, b"", ROOT),
        Ask(3008, who, b"", ROOT),
        Ask(3009, who, b"", ROOT),
        Ask(3006, who, rule("Topic:t1", ["Any"]), ROOT),
        Ask(3006, who, rule("Topic:t1", ["nothing"]), ROOT),
        Ask(3006, who, rule("Thing:t1", ["Pub"]), ROOT),
        Ask(3006, who, rule("Topic:t1", ["Pub"], None), ROOT),
        Ask(3006, {"subject": "User:zed"}, rule("Topic:t1", ["Pub"], "Allow", "User:zed"), ROOT),
        Ask(3006, who, b"{}", ROOT),
        Ask(3006, who, rule("Topic:t1", ["Pub"]).replace(b"10.0.0.0/8", b"10.*"), ROOT),
    )
    entry = {"resource": "Topic:t1", "actions": ["Get"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}
    denies = {"resource": "Topic:t*", "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Deny"}
    whole = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [entry, denies]}]}
    left = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [denies]}]}
    assert [code for code, _, _ in found[:9]] == [0] * 9
    assert json.loads(found[3][2]) == whole
    assert json.loads(found[4][2]) == [left]
    assert found[5][2] == b""
    assert json.loads(found[7][2]) == left
    assert [(code, remark) for code, remark, _ in found[9:]] == [
        (16, "The acl is not exist."), (0, None), (16, "The actions can not be Any."), (16, "The actions is empty."),
        (16, "The resource is null."), (16, "The decision is null or illegal."),
        (16, "The subject of User:zed is not exist."),
        (1, "org.apache.rocketmq.auth.authorization.exception.AuthorizationException: The body of acl is null"),
        (16, "The source ip is invalid."),
    ]  # fmt: skip
    assert found[10][2] == b""


def test_a_change_of_rules_counts_for_the_next_request(auth: Setup) -> None:
    """A permission that was found before does not outlive the rule, whichever way the rule changes."""
    subject = "User:alice"
    for change in (
        lambda: auth.policies.put(subject, acl("Topic:t", "Pub", "Deny")),
        lambda: auth.policies.delete(subject, None, "Topic:t"),
        lambda: auth.policies.delete(subject),
        lambda: auth.policies.forget(subject),
        lambda: auth.policies.put(subject, acl("Topic:t", "Pub", ips=["10.0.0.0/8"])),
    ):
        auth.policies.put(subject, acl("Topic:t", "Pub"))
        assert auth.ask(send("t"), send("t")) == [PASSED, PASSED]
        change()
        assert auth.ask(send("t"))[0][0] == 16


def test_long_names_of_permitted_requests_are_not_kept(auth: Setup) -> None:
    auth.policies.put("User:alice", acl("Topic:*", "Pub"))
    tracemalloc.start()
    for number in range(100):
        auth.policies.authorize("alice", of_topic(f"{number}" + "x" * 50_000, Action.PUB), "127.0.0.1")
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 1_000_000


def test_the_rules_of_a_deleted_user_are_deleted(auth: Setup) -> None:
    auth.policies.put("User:alice", acl("Topic:*", "All"))
    auth.ask(Ask(3003, {"username": "alice"}, b"", ROOT))
    auth.users.create(User(*ALICE))
    assert auth.ask(send("t")) == [no_rule("Topic:t")]


def test_files_that_cannot_be_read_are_an_error(auth: Setup) -> None:
    for name in ("authUsers.json", "authAcls.json"):
        (auth.work / "config" / name).write_text(
            "{" if name == "authUsers.json" else '{"acls":{"User:a":{"policies":[]}}}'
        )
    with pytest.raises(CorruptFile, match="users cannot be read"):
        Users(auth.work / "config" / "authUsers.json")
    with pytest.raises(CorruptFile, match="rules cannot be read"):
        Policies(auth.work / "config" / "authAcls.json", "c")


def test_without_authentication_a_super_user_can_be_created(tmp_path: Path) -> None:
    """As in Java: how the first user comes into a broker that does not check yet."""
    setup = Setup(tmp_path)
    processor = AuthProcessor(setup.users, setup.policies, is_checked=False)
    made = Ask(3001, {"username": "root"}, user("root", "x", "Super"))
    assert [code for code, _, _ in answers(AclFilter(), made, register=processor.register)] == [0]
    assert setup.users.is_super("root")
    with pytest.raises(CallRefused, match="is not found"):
        setup.users.is_super("other")
