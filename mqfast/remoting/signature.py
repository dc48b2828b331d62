"""The signature of a request: HMAC-SHA1 of its sorted fields and its body, with the caller's secret.

The time of a comparison does not depend on the signatures. Source: AclUtils, AclSigner, AclClientRPCHook.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from typing import Any, Final

from mqfast.remoting.command import RemotingCommand, signed_parts

__all__ = [
    "ACCESS_KEY", "OF_THE_SIGNATURE", "SECURITY_TOKEN", "SIGNATURE", "is_signed_with", "sign", "signature_of",
    "signer_of",
]  # fmt: skip

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
OF_THE_SIGNATURE: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
# Clients up to 4.9.3 sign before they add this field, newer clients after. The field chooses the kind of a query only.
_ADDED_LATE: Final = "_UNIQUE_KEY_QUERY"
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


@lru_cache(maxsize=1024)
def _keyed(secret: str) -> tuple[Any, Any]:
    """Return the inner and the outer hash of HMAC (RFC 2104) after the key, to be copied.

    The module hmac takes longer for a copy, and twice as long for a new key.
    """
    key = secret.encode()
    key = (sha1(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return sha1(key.translate(_INNER)), sha1(key.translate(_OUTER))


def _hmac(values: bytes, body: Any, secret: str) -> bytes:
    """Return the signature in base 64. Args: body: bytes, or a sequence of buffers."""
    inner, outer = _keyed(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(values)
    for part in (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body or ():
        inner.update(part)
    outer.update(inner.digest())
    return binascii.b2a_base64(outer.digest(), newline=False)


def signature_of(fields: Mapping[str, Any], body: Any, secret: str, without: Iterable[str] = ()) -> str:
    """Return the signature as text in base 64. ``body``: bytes, or a sequence of buffers."""
    left_out = {SIGNATURE, *without}
    values = "".join([str(fields[name]) for name in sorted(fields) if name not in left_out])
    return _hmac(values.encode("utf-8", "replace"), body, secret).decode("ascii")


def signer_of(request: RemotingCommand) -> Any:
    """Return the access key that a request names, which proves nothing; None without a key."""
    parts = signed_parts(request)
    return request.ext_fields.get(ACCESS_KEY) if parts is None else parts[0]


def is_signed_with(request: RemotingCommand, secret: str) -> bool:
    """Return whether the request has the signature of this secret."""
    parts = signed_parts(request)
    if parts is not None:
        return hmac.compare_digest((parts[1] or "").encode(), _hmac(parts[2], request.body, secret))
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
