"""docs/service/kubernetes.yaml: its scripts, probes and drain run on this machine, as the pods would run them.

There is no Kubernetes here: the test reads the manifests, and does what a node would, in a network of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqfast.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = list(yaml.safe_load_all((ROOT / "docs" / "service" / "kubernetes.yaml").read_text(encoding="utf-8")))


def named(kind: str, name: str) -> dict[str, Any]:
    (document,) = [part for part in DOCUMENTS if part["kind"] == kind and part["metadata"]["name"] == name]
    return document


def container(name: str) -> dict[str, Any]:
    (part,) = named("StatefulSet", name)["spec"]["template"]["spec"]["containers"]
    return part


def settings() -> dict[str, str]:
    text = named("ConfigMap", "mqfast-broker")["data"]["broker.conf"]
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_parts_of_the_manifests_fit_each_other() -> None:
    broker, pod = container("mqfast-broker"), named("StatefulSet", "mqfast-broker")["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in broker["volumeMounts"]}
    assert mounts["store"] == settings()["storePathRootDir"]
    assert [claim["metadata"]["name"] for claim in pod["volumeClaimTemplates"]] == ["store"]
    assert pod["template"]["spec"]["securityContext"]["runAsUser"] == 3000
    assert "groupadd --gid 3000" in (ROOT / "docs" / "service" / "Dockerfile").read_text(encoding="utf-8")
    for name in ("mqfast-namesrv", "mqfast-broker"):
        service, workload = named("Service", name)["spec"], named("StatefulSet", name)["spec"]
        assert service["selector"] == workload["selector"]["matchLabels"] == workload["template"]["metadata"]["labels"]
        assert workload["serviceName"] == name
        ports = {port["containerPort"] for port in container(name)["ports"]}
        assert ports == {port["port"] for port in service["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert str(broker[probe]["httpGet"]["port"]) == settings()["metricsPromExporterPort"]
    build_parser().parse_args(container("mqfast-namesrv")["args"])
    grace = pod["template"]["spec"]["terminationGracePeriodSeconds"]
    drain = named("ConfigMap", "mqfast-broker")["data"]["drain.sh"]
    assert int(drain.split("--wait ")[1].split()[0]) + 60 <= grace  # the flush after the drain


POD = r"""
import json, os, pathlib, signal, subprocess, sys, time, urllib.request
sys.path.insert(0, sys.argv[1])
import own_network
if not own_network.enter():
    sys.exit(77)
work, given = pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
os.chdir(work)
servers = []


def start(words, **variables):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    servers.append(process)
    while True:
        line = process.stdout.readline()
        assert line, words
        if " listens on " in line:
            return process


def run(words, **variables):
    return subprocess.run(words, env={**os.environ, **variables}, text=True, capture_output=True).returncode


names = [word.replace("0.0.0.0", "127.0.0.1") for word in given["namesrv"]]
start(["mqfast", *names])
codes = {"namesrv ready": run(given["namesrv_ready"]), "namesrv live": run(given["namesrv_live"])}
os.environ["NAMESRV_ADDR"] = "127.0.0.1:9876"
for number in (0, 1):
    folder = work / f"pod{number}"
    folder.mkdir()
    address = f"127.0.0.{number + 1}"
    conf = given["broker.conf"].replace("0.0.0.0", address).replace("/home/rocketmq/store", f"{folder}/store")
    (folder / "broker.conf").write_text(conf + "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n")
    (folder / "start.sh").write_text(given["start.sh"].replace("/etc/mqfast", str(folder)))
    (folder / "drain.sh").write_text(given["drain.sh"].replace("--quiet 35", "--quiet 0.5"))
    start(["sh", f"{folder}/start.sh"], HOSTNAME=f"mqfast-broker-{number}", MQFAST_ADVERTISE=address)
    for name, path in given["probes"].items():
        url = f"http://{address}:5557{path}"
        while True:  # until the registration
            try:
                codes[f"{number} {name}"] = urllib.request.urlopen(url, timeout=60).status
                break
            except urllib.error.HTTPError as error:
                assert error.code == 503
                time.sleep(0.1)
listed = subprocess.run(["mqfast", "admin", "cluster", "--json"], text=True, capture_output=True, check=True).stdout
codes["brokers"] = sorted(json.loads(line)["id"] for line in listed.splitlines())
codes["drain"] = [run(["sh", f"{work}/pod{n}/drain.sh"], HOSTNAME=f"mqfast-broker-{n}") for n in (0, 1)]
for process in reversed(servers):
    process.send_signal(signal.SIGTERM)
codes["ends"] = [process.wait(200) for process in servers]
print(json.dumps(codes))
"""


def test_pods_start_are_probed_drained_and_end(tmp_path: Path) -> None:
    names, broker = container("mqfast-namesrv"), container("mqfast-broker")
    probes = {name: broker[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    given = {
        **named("ConfigMap", "mqfast-broker")["data"], "namesrv": names["args"], "probes": probes,
        "namesrv_ready": names["readinessProbe"]["exec"]["command"],
        "namesrv_live": names["livenessProbe"]["exec"]["command"],
    }  # fmt: skip
    assert broker["command"] == ["sh", "/etc/mqfast/start.sh"]
    assert broker["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "/etc/mqfast/drain.sh"]
    done = subprocess.run(
        [sys.executable, "-c", POD, str(ROOT / "tests" / "kit"), str(tmp_path), json.dumps(given)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
             "HOME": str(tmp_path)},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this system allows no network of its own")
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    assert codes == {
        "namesrv ready": 0, "namesrv live": 0, "brokers": [0, 1], "drain": [0, 0], "ends": [0, 0, 0],
        **{f"{number} {probe}": 200 for number in (0, 1) for probe in probes},
    }  # fmt: skip
