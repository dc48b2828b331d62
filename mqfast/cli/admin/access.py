"""``mqfast admin acl``: users and rules of ACL 2.0, and accounts of ACL 1.0.

A change goes to every master of the cluster unless ``--broker`` names one. No password is printed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqfast.cli.admin.commands import AdminCommands, print_table, say_outcome
from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands"]

_PASSWORD_VARIABLE = "MQFAST_NEW_PASSWORD"


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.group("user", "users of ACL 2.0", _add_users)
    commands.group("rule", "rules of ACL 2.0", _add_rules)
    commands.group("account", "accounts of ACL 1.0 (plain_acl.yml)", _add_accounts)
    commands.add(
        "copy", copy, "copy users and rules from a broker to another", _fill_copy, example="broker-a broker-b --yes",
        more="A broker tells no passwords: a copied user gets the one of --password-file.", changes=True,
    )  # fmt: skip


def _place(sub: Parser) -> None:
    sub.add_argument("--broker", metavar="BROKER", help="only this one: its name, or host:port")
    sub.add_argument("--cluster", metavar="CLUSTER", help="only its masters")


def _add_users(commands: AdminCommands) -> None:
    commands.add("ls", users, "list users", _fill_users, example="--broker broker-a")
    commands.add(
        "create", user_create, "create a user", _fill_user_create, changes=True,
        example="alice --password-file secret --yes",
    )  # fmt: skip
    commands.add(
        "set", user_set, "change password, type or status of a user", _fill_user, changes=True,
        example="alice --status disable --yes",
    )  # fmt: skip
    commands.add(
        "delete", user_delete, "delete a user with the user's rules", _fill_name, example="alice --yes", changes=True
    )


def _fill_users(sub: Parser) -> None:
    sub.add_argument("--name", metavar="PART", default="", help="only names with this part")
    _place(sub)


def _fill_name(sub: Parser) -> None:
    sub.add_argument("name", metavar="NAME")
    _place(sub)


def _fill_user_create(sub: Parser) -> None:
    _fill_name(sub)
    _password(sub)
    sub.add_argument("--type", dest="user_type", choices=("Normal", "Super"))


def _fill_user(sub: Parser) -> None:
    _fill_user_create(sub)
    sub.add_argument("--status", choices=("enable", "disable"))


def _password(sub: Parser) -> None:
    sub.add_argument(
        "--password-file", metavar="FILE", help=f"its first line is the password (default: {_PASSWORD_VARIABLE})"
    )


def _add_rules(commands: AdminCommands) -> None:
    commands.add("ls", rules, "list rules", _fill_rules, example="--subject User:alice")
    commands.add(
        "set", rule_set, "set a rule for resources", _fill_rule, changes=True,
        example="User:alice --resource 'Topic:orders*' --action Pub --decision Allow --yes",
    )  # fmt: skip
    commands.add(
        "delete", rule_delete, "delete the rules of a subject, or one", _fill_rule_delete, changes=True,
        example="User:alice --resource Topic:orders --yes",
    )  # fmt: skip


def _fill_rules(sub: Parser) -> None:
    sub.add_argument("--subject", metavar="PART", default="")
    sub.add_argument("--resource", metavar="PART", default="")
    _place(sub)


def _fill_rule(sub: Parser) -> None:
    sub.add_argument("subject", metavar="SUBJECT", help="User:name")
    sub.add_argument("--resource", action="append", required=True, help="Topic:name, Group:name*, Cluster:name, ...")
    sub.add_argument(
        "--action", action="append", required=True, help="Pub, Sub, Create, Update, Delete, Get, List, All"
    )
    sub.add_argument("--decision", choices=("Allow", "Deny"), required=True)
    sub.add_argument("--address", action="append", default=[], metavar="NETWORK", help="only callers from there")
    _place(sub)


def _fill_rule_delete(sub: Parser) -> None:
    sub.add_argument("subject", metavar="SUBJECT", help="User:name")
    sub.add_argument("--resource", metavar="RESOURCE", help="only the rule for this one")
    _place(sub)


def _add_accounts(commands: AdminCommands) -> None:
    commands.add("ls", accounts, "list accounts and the white list", _place, example="--broker broker-a")
    commands.add("version", version, "show the versions of the files of accounts", _place, example="--broker broker-a")
    commands.add(
        "set", account_set, "create or change an account", _fill_account, changes=True,
        example="reporter defaultTopicPerm=SUB defaultGroupPerm=SUB --yes",
    )  # fmt: skip
    commands.add("delete", account_delete, "delete an account", _fill_name, example="reporter --yes", changes=True)
    commands.add(
        "white-list", white_list, "set the addresses that have all permissions", _fill_white, changes=True,
        example="10.10.15.* 192.168.0.* --yes",
    )  # fmt: skip


def _fill_account(sub: Parser) -> None:
    _fill_name(sub)
    sub.add_argument("changes", nargs="*", type=name_value, metavar="NAME=VALUE", help="by the names of plain_acl.yml")
    _password(sub)


def _fill_white(sub: Parser) -> None:
    sub.add_argument("addresses", nargs="*", metavar="ADDRESS")
    sub.add_argument("--file", metavar="PATH", help="of the broker (default: its main file)")
    _place(sub)


def _fill_copy(sub: Parser) -> None:
    sub.add_argument("source", metavar="FROM")
    sub.add_argument("target", metavar="TO")
    sub.add_argument("--user", action="append", metavar="NAME", help="only this one (may be given several times)")
    _password(sub)


# --- places and passwords ---


def masters(admin: AdminClient, arguments: argparse.Namespace) -> list[str]:
    """Return the brokers that the command line names: one, or the masters of a cluster, or all masters."""
    if arguments.broker is not None:
        return [arguments.broker]
    names = [
        name for cluster, brokers in admin.clusters().items() if arguments.cluster in (None, cluster)
        for name, addresses in brokers.items() if 0 in addresses
    ]  # fmt: skip
    if not names:
        raise ConfigError(f"expected a broker with a master, found none in cluster {arguments.cluster or '(any)'}")
    return names


def password(arguments: argparse.Namespace) -> str | None:
    """Return the password of the file, of the variable, or of RocketMQ's flag."""
    given = getattr(arguments, "password", None)
    if given is not None:
        return str(given)
    if arguments.password_file:
        try:
            return Path(arguments.password_file).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--password-file {arguments.password_file}: {error}") from None
    return os.environ.get(_PASSWORD_VARIABLE)


def _named(rows: Iterable[Mapping[str, Any]], field: str, name: str) -> Mapping[str, Any]:
    """Return the row of a name; an empty row for a missing name."""
    return next((row for row in rows if row.get(field) == name), {})


# --- users ---


def users(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List users by broker."""
    rows = [
        (broker, user.get("username"), user.get("userType"), user.get("userStatus"))
        for broker in masters(admin, arguments)
        for user in admin.users(broker, arguments.name)
    ]
    return print_table(out, ("broker", "user", "type", "status"), rows)


def user_create(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create a user at each master."""
    secret = password(arguments)
    if not secret:
        raise ConfigError(f"password: expected --password-file or {_PASSWORD_VARIABLE} for a new user, found none")
    return _set_user(admin, arguments, out, secret, create=True)


def user_set(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change a user at each master."""
    return _set_user(admin, arguments, out, password(arguments), create=False)


def _set_user(
    admin: AdminClient, arguments: argparse.Namespace, out: Output, secret: str | None, *, create: bool
) -> ExitCode:
    status = getattr(arguments, "status", None)
    rows = []
    for broker in masters(admin, arguments):
        before = _named(admin.users(broker, arguments.name), "username", arguments.name)
        after = (arguments.user_type or before.get("userType", "Normal"), status or before.get("userStatus", "enable"))
        told = "new" if secret else "same"
        rows.append((broker, arguments.name, before.get("userType", "-"), before.get("userStatus", "-"), *after, told))
        if arguments.yes:
            admin.set_user(
                broker, arguments.name, password=secret, user_type=arguments.user_type, status=status, create=create
            )
    print_table(out, ("broker", "user", "type", "status", "type after", "status after", "password"), rows)
    say_outcome(out, arguments)
    return ExitCode.OK


def user_delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete a user at each master, or show the user's rules."""
    for broker in masters(admin, arguments):
        count = len(admin.rules(broker, f"User:{arguments.name}"))
        out.note(f"broker {broker}: user {arguments.name}, {count} subjects with rules")
        if arguments.yes:
            admin.delete_user(broker, arguments.name)
    say_outcome(out, arguments, "deleted")
    return ExitCode.OK


# --- rules ---


def rules(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List rules by broker."""
    return print_table(out, _RULE_HEADS, _rule_rows(admin, arguments, arguments.subject, arguments.resource))


_RULE_HEADS = ("broker", "subject", "resource", "actions", "decision", "addresses")


def _rule_rows(admin: AdminClient, arguments: argparse.Namespace, subject: str, resource: str) -> list[tuple[Any, ...]]:
    return [
        (broker, acl.get("subject"), entry.get("resource"), ",".join(entry.get("actions") or ()),
         entry.get("decision"), ",".join(entry.get("sourceIps") or ()))
        for broker in masters(admin, arguments)
        for acl in admin.rules(broker, subject, resource)
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]  # fmt: skip


def rule_set(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Set a rule at each master, or show the rules of the subject and the new ones."""
    print_table(out, _RULE_HEADS, [
        *_rule_rows(admin, arguments, arguments.subject, ""),
        *(("(new)", arguments.subject, resource, ",".join(arguments.action), arguments.decision,
           ",".join(arguments.address)) for resource in arguments.resource),
    ])  # fmt: skip
    if arguments.yes:
        for broker in masters(admin, arguments):
            admin.set_rules(
                broker, arguments.subject, arguments.resource, arguments.action, arguments.decision,
                addresses=arguments.address,
            )  # fmt: skip
    say_outcome(out, arguments)
    return ExitCode.OK


def rule_delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete rules at each master, or show the rules."""
    code = print_table(out, _RULE_HEADS, _rule_rows(admin, arguments, arguments.subject, arguments.resource or ""))
    if arguments.yes:
        for broker in masters(admin, arguments):
            admin.delete_rules(broker, arguments.subject, arguments.resource)
    say_outcome(out, arguments, "deleted")
    return code


# --- accounts of ACL 1.0 ---


def accounts(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List accounts by broker."""
    rows = []
    for broker in masters(admin, arguments):
        table = admin.accounts(broker)
        for account in table.get("plainAccessConfigs") or ():
            perms = [*(account.get("topicPerms") or ()), *(account.get("groupPerms") or ())]
            rows.append(
                (broker, account.get("accessKey"), bool(account.get("admin")), account.get("defaultTopicPerm", "-"),
                 account.get("defaultGroupPerm", "-"), ",".join(perms), account.get("whiteRemoteAddress") or "-")
            )  # fmt: skip
        if not out.as_json:
            out.note(f"broker {broker}: white list {', '.join(table.get('globalWhiteAddrs') or ()) or 'empty'}")
    return print_table(out, ("broker", "account", "admin", "topics", "groups", "permissions", "addresses"), rows)


def version(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the versions of the files of accounts."""
    rows = [
        (broker, file, state.get("counter") if isinstance(state, Mapping) else state)
        for broker in masters(admin, arguments)
        for file, state in admin.accounts_version(broker).items()
    ]
    return print_table(out, ("broker", "file", "version"), rows)


def account_set(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Set an account at each master, or show the account before."""
    changes = dict(arguments.changes)
    secret = password(arguments)
    if secret:
        changes["secretKey"] = secret
    for broker in masters(admin, arguments):
        before = _named(admin.accounts(broker).get("plainAccessConfigs") or (), "accessKey", arguments.name)
        rows = [
            (broker, name, before.get(name, "-"), "(new)" if name == "secretKey" else value)
            for name, value in changes.items()
        ]
        print_table(out, ("broker", "name", "before", "after"), rows)
        if arguments.yes:
            admin.set_account(broker, arguments.name, changes)
    say_outcome(out, arguments)
    return ExitCode.OK


def account_delete(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Delete an account at each master."""
    for broker in masters(admin, arguments):
        out.note(f"broker {broker}: account {arguments.name}")
        if arguments.yes:
            admin.delete_account(broker, arguments.name)
    say_outcome(out, arguments, "deleted")
    return ExitCode.OK


def white_list(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Set the white list at each master, or show both."""
    for broker in masters(admin, arguments):
        before = admin.accounts(broker).get("globalWhiteAddrs") or ()
        print_table(out, ("broker", "before", "after"), [(broker, ",".join(before), ",".join(arguments.addresses))])
        if arguments.yes:
            admin.set_white_list(broker, arguments.addresses, arguments.file)
    say_outcome(out, arguments)
    return ExitCode.OK


# --- copies ---


def copy(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Copy users and rules, or show which would be copied. Users that the target has keep their passwords."""
    wanted = set(arguments.user or ())
    secret = password(arguments)
    there = {user.get("username") for user in admin.users(arguments.target)}
    rows = []
    for user in admin.users(arguments.source):
        name = str(user.get("username"))
        if wanted and name not in wanted:
            continue
        entries = [
            entry for acl in admin.rules(arguments.source, f"User:{name}") if acl.get("subject") == f"User:{name}"
            for policy in acl.get("policies") or () for entry in policy.get("entries") or ()
        ]  # fmt: skip
        rows.append((name, "there" if name in there else "new", len(entries)))
        if not arguments.yes:
            continue
        if name not in there:
            if not secret:
                raise ConfigError(f"user {name}: expected --password-file, because a broker tells no passwords")
            admin.set_user(arguments.target, name, password=secret, user_type=user.get("userType"), create=True)
        for entry in entries:
            admin.set_rules(
                arguments.target, f"User:{name}", [entry["resource"]], entry.get("actions") or (), entry["decision"],
                addresses=entry.get("sourceIps") or (),
            )  # fmt: skip
    code = print_table(out, ("user", "state", "rules"), rows)
    say_outcome(out, arguments, "copied")
    return code
