"""The requests of admins for the accounts of ACL 1.0: 50 to 54.

No secret leaves the broker; the ACL filter has checked the requests. Source: AdminBrokerProcessor of 4.9.7.
"""

from __future__ import annotations

from typing import Any, Final

from mqfast.broker.acl.plain_files import PlainFiles
from mqfast.errors import ConfigError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["PlainAclProcessor"]

_TEXTS: Final = ("accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")


class PlainAclProcessor:
    """Serves 50 (create or change an account), 51 (delete), 52 (versions), 53 (white list), 54 (show all).

    Args: files: the accounts; address, name, cluster: of the broker, for 52.
    """

    def __init__(self, files: PlainFiles, *, address: str, name: str, cluster: str) -> None:
        self._files = files
        self._broker = {"brokerAddr": address, "brokerName": name, "clusterName": cluster}

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        lane = ConcurrencyLimit("acl")
        for code, handler in {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.set_white_list,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.show,
        }.items():
            processors.register([code], handler, lane)

    def put(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 50: create an account, or change the given fields."""
        fields = request.ext_fields
        given: dict[str, Any] = {name: fields[name] for name in _TEXTS if name in fields}
        given["admin"] = fields.get("admin") == "true"
        for name in ("topicPerms", "groupPerms"):
            if name in fields:
                given[name] = _list(fields[name])
        try:
            self._files.put_account(given)
        except (ConfigError, OSError) as error:
            return request.response(ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, remark=str(error))
        return request.response()

    def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 51: delete an account."""
        key = request.ext_fields.get("accessKey", "")
        try:
            if self._files.delete_account(key):
                return request.response()
            remark = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
        except (ConfigError, OSError) as error:
            remark = str(error)
        return request.response(ResponseCode.DELETE_ACL_CONFIG_FAILED, remark=remark)

    def versions(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 52: the versions of the files in force."""
        versions = self._files.versions()
        own = versions.get(str(self._files.file), {"counter": 0, "stateVersion": 0, "timestamp": 0})
        return request.response(
            0,
            {
                "version": encode_body(own).decode(),
                "allAclFileVersion": encode_body(versions).decode(),
                **self._broker,
            },
        )

    def set_white_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 53: set the addresses with all permissions."""
        text = request.ext_fields.get("globalWhiteAddrs", "")
        try:
            if self._files.set_white_list(_list(text), request.ext_fields.get("aclFileFullPath")):
                return request.response()
            remark = f"The globalWhiteAddresses[{text}] has been updated failed."
        except (ConfigError, OSError) as error:
            remark = str(error)
        return request.response(ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, remark=remark)

    def show(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 54: white list and accounts, without secrets."""
        white, accounts = self._files.everything()
        return request.response(body=encode_body({"globalWhiteAddrs": white, "plainAccessConfigs": accounts}))


def _list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
