"""The signature of a request: HMAC-SHA1 of its sorted fields and its body, with the caller's secret.

The time of a comparison does not depend on the signatures. Source: AclUtils, AclSigner, AclClientRPCHook.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqfast.remoting.command import RemotingCommand

__all__ = ["ACCESS_KEY", "OF_THE_SIGNATURE", "SECURITY_TOKEN", "SIGNATURE", "is_signed_with", "sign", "signature_of"]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
OF_THE_SIGNATURE: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
# Clients up to 4.9.3 sign before they add this field, newer clients after. The field chooses the kind of a query only.
_ADDED_LATE: Final = "_UNIQUE_KEY_QUERY"


def signature_of(fields: Mapping[str, Any], body: Any, secret: str, without: Iterable[str] = ()) -> str:
    """Return the signature as text in base 64. ``body``: bytes, or a sequence of buffers."""
    left_out = {SIGNATURE, *without}
    values = "".join([str(fields[name]) for name in sorted(fields) if name not in left_out])
    digest = hmac.new(secret.encode(), values.encode("utf-8", "replace"), "sha1")
    for part in (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body or ():
        digest.update(part)
    return binascii.b2a_base64(digest.digest(), newline=False).decode("ascii")


def is_signed_with(request: RemotingCommand, secret: str) -> bool:
    """Return whether the request has the signature of this secret."""
    fields = request.ext_fields
    signature = str(fields.get(SIGNATURE, "")).encode("utf-8", "replace")
    is_equal = hmac.compare_digest(signature, signature_of(fields, request.body, secret).encode())
    if _ADDED_LATE not in fields:
        return is_equal
    # Both are compared, whatever the result of the first.
    without = signature_of(fields, request.body, secret, [_ADDED_LATE])
    return hmac.compare_digest(signature, without.encode()) | is_equal


def sign(fields: Mapping[str, Any], body: Any, access_key: str, secret: str, token: str = "") -> dict[str, Any]:
    """Return the fields of a request with access key and signature. Fields without a value are left out, as on the
    wire.
    """
    signed = {name: _text(value) for name, value in fields.items() if value is not None}
    signed[ACCESS_KEY] = access_key
    if token:
        signed[SECURITY_TOKEN] = token
    signed[SIGNATURE] = signature_of(signed, body, secret)
    return signed


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
