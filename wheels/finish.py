"""Last step of a wheel or an sdist: the same input gives the same bytes.

To a wheel are added the bill of materials (PEP 770) and the licences of the bundled libraries; then follows another
packing, by libdeflate where the package deflate is installed, else by zlib. Entries are sorted, with the same time
(``SOURCE_DATE_EPOCH``) and owner. Run by wheels/build.sh as ``python wheels/finish.py FILE_OR_FOLDER...``.
Must never change a module: only the folder ``.dist-info`` gets files and a new RECORD.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

SBOM = "sboms/mqfast.cdx.json"
LICENCES = Path(__file__).with_name("licences")
# Cython's own code is compiled into the extensions; this name of a module, in their text, has the version.
CYTHON_VERSION = re.compile(rb"_cython_(\d+(?:_\w+)+?)\x00")
FIRST_ZIP_TIME = 315532800  # 1980-01-01: a zip has no earlier time


def pypi_component(name: str, version: str, scope: str = "") -> dict[str, Any]:
    """Return the CycloneDX component of a distribution on PyPI; without a version if none is known."""
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}"
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name}
    component["purl"] = f"{purl}@{version}" if version else purl
    if version:
        component["version"] = version
    if scope:
        component["scope"] = scope
    return component


def compiled_in(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """Return the components whose code is in the extensions of a wheel, or bundled by auditwheel."""
    components = []
    runtime = next((text for name, text in files.items() if re.match(r"mqfast/cython_runtime\..*so$", name)), None)
    if runtime is not None:
        match = CYTHON_VERSION.search(runtime)
        component = pypi_component("Cython", match[1].decode().replace("_", ".") if match else "", "required")
        components.append(component | {"licenses": [{"license": {"id": "Apache-2.0"}}]})
    for name in files:
        match_library = re.match(r"mqfast\.libs/lib(\w+)-", name)
        if match_library is not None:
            library = match_library[1]
            hashes = [{"alg": "SHA-256", "content": hashlib.sha256(files[name]).hexdigest()}]
            components.append(
                {"type": "library", "bom-ref": f"pkg:generic/{library}", "name": library, "hashes": hashes}
            )
    return components


def licences(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the licences of the bundled libraries, by path in ``.dist-info``. Ends the program without a text."""
    texts = {}
    for name in sorted(files):
        match = re.match(r"mqfast\.(?:libs|dylibs)/lib([a-z]+\d?)", name) or re.match(
            r"mqfast/\.dylibs/lib([a-z]+\d?)", name
        )
        if match is not None:
            path = LICENCES / f"{match[1]}.txt"
            if not path.exists():
                sys.exit(f"{name} is bundled: expected its licence in {path}, found none")
            texts[f"licenses/{match[1]}.txt"] = path.read_bytes()
    return texts


def bill_of_materials(metadata: str, files: dict[str, bytes], wheel: str, created: int) -> bytes:
    """Return the CycloneDX document of a wheel: what is compiled in, and what the wheel requires."""
    fields = re.findall(r"^([A-Za-z-]+): (.*)$", metadata.partition("\n\n")[0], re.MULTILINE)
    version = next(value for name, value in fields if name == "Version")
    own = pypi_component("mqfast", version)
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    components = compiled_in(files)
    for name, requirement in fields:
        if name == "Requires-Dist":
            required, _, marker = requirement.partition(";")
            extra = "extra ==" in marker
            component = pypi_component(re.split(r"[\s<>=!~\[(]", required.strip())[0], "", "optional" if extra else "")
            component["properties"] = [{"name": "requirement", "value": requirement.strip()}]
            if component["bom-ref"] not in {known["bom-ref"] for known in components} | {own["bom-ref"]}:
                components.append(component)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
            "component": own,
            "properties": [{"name": "wheel", "value": wheel}],
        },
        "components": components,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in components)}],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def record(files: dict[str, bytes], path: str) -> bytes:
    """Return the RECORD of the files: name, hash and size of each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(files[name])])
    writer.writerow([path, "", ""])
    return text.getvalue().encode()


def deflate(content: bytes) -> bytes:
    """Return the content as a raw deflate stream, as short as the installed tools make one."""
    try:
        from deflate import deflate_compress
    except ImportError:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(content) + packer.flush()
    return bytes(deflate_compress(content, 12))


def write_zip(path: Path, files: dict[str, bytes], modes: dict[str, int], created: int) -> None:
    """Write a zip file with packed entries: the module zipfile offers no choice of the packer."""
    moment = time.gmtime(max(created, FIRST_ZIP_TIME))
    dos_time = moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2
    dos_date = (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday
    body, directory = bytearray(), bytearray()
    for name in files:
        content = files[name]
        packed, encoded = deflate(content), name.encode()
        method = zipfile.ZIP_DEFLATED
        if len(packed) >= len(content):
            packed, method = content, zipfile.ZIP_STORED
        common = struct.pack(
            *("<HHHHHIIIHH", 20, 0x800, method, dos_time, dos_date, zlib.crc32(content), len(packed), len(content)),
            *(len(encoded), 0),
        )
        directory += b"PK\1\2" + struct.pack("<H", 3 << 8 | 20) + common
        directory += struct.pack("<HHHII", 0, 0, 0, modes[name] << 16, len(body)) + encoded
        body += b"PK\3\4" + common + encoded + packed
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(body), 0)
    path.write_bytes(bytes(body) + bytes(directory) + end)


def finish(path: Path, created: int) -> None:
    """Add the bill of materials to a wheel and pack the wheel again, in its place."""
    with zipfile.ZipFile(path) as wheel:
        entries = [entry for entry in wheel.infolist() if not entry.is_dir()]
        files = {entry.filename: wheel.read(entry) for entry in entries}
        modes = {entry.filename: (entry.external_attr >> 16) or 0o100644 for entry in entries}
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    files[f"{info}/{SBOM}"] = bill_of_materials(files[f"{info}/METADATA"].decode(), files, path.name, created)
    texts = licences(files)
    files |= {f"{info}/{name}": text for name, text in texts.items()}
    modes |= {f"{info}/{name}": 0o100644 for name in texts}
    records = f"{info}/RECORD"
    files.pop(records)
    files[records] = record(files, records)
    modes |= {f"{info}/{SBOM}": 0o100644}
    # The folder .dist-info comes last, as the format of wheels asks for.
    names = sorted(files, key=lambda name: (name.startswith(info), name == records, name))
    before = path.stat().st_size
    write_zip(path, {name: files[name] for name in names}, modes, created)
    with zipfile.ZipFile(path) as wheel:
        damaged = wheel.testzip()
    if damaged is not None:
        sys.exit(f"{path}: {damaged} is damaged after packing")
    print(f"{path.name}: {before} bytes, now {path.stat().st_size}, with {SBOM}")


def finish_sdist(path: Path, created: int) -> None:
    """Pack an sdist again, in its place: sorted, with equal times and owners."""
    packed = io.BytesIO()
    with tarfile.open(path) as given, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for member in sorted(given.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = created, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            made.addfile(member, given.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=created))
    print(f"{path.name}: {path.stat().st_size} bytes")


def main() -> int:
    """Finish the wheels and sdists, and those in the folders, given on the command line."""
    created = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    for argument in map(Path, sys.argv[1:]):
        for path in sorted([*argument.glob("*.whl"), *argument.glob("*.tar.gz")]) if argument.is_dir() else [argument]:
            (finish_sdist if path.name.endswith(".tar.gz") else finish)(path, created)
    return 0


if __name__ == "__main__":
    sys.exit(main())
