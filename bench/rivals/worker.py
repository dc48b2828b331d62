"""One rival in a process of its own: commands on stdin, a JSON object a line on stdout, as java/Bench.java.

Words of a command are separated by tabs:

    open DIRECTORY cache|durable
    single SIZE SECONDS THREADS     put one after the other: {"count", "ns" of one}
    keywords SIZE SECONDS           the same, in one thread, by mqfast's put with keywords
    batch SIZE SECONDS              batches of a thousand: the same
    timed SIZE SECONDS              time of each put: {"call": [[ns, count], ...]}
    paced SIZE RATE SECONDS PHASE   puts on a schedule (latency.first_due): {"due": ..., "call": ...}
    thread                          the number that Linux gave the thread that puts: {"thread": number}
    close

An answer may be {"skip": why} or {"error": what}. It must never print anything else on stdout.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from array import array
from collections import Counter
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from latency import LEAD_S, WARM_UP, paced
from stores import RIVALS, CFloor, CLog, HotMemory, Mqfast, Rival

CHUNK = 200
BATCH = 1000


def rounded(values: array[int]) -> list[list[int]]:
    """Counts by value; values keep their 11 highest bits."""
    counts: Counter[int] = Counter()
    for value, count in Counter(values).items():
        value = max(1, value)
        shift = max(0, value.bit_length() - 11)
        counts[value >> shift << shift] += count
    return [[value, counts[value]] for value in sorted(counts)]


class Process:
    """The commands, on one rival."""

    def __init__(self, name: str) -> None:
        self.rival: Rival = RIVALS[name]()
        self.durable = False

    def open(self, directory: str, how: str) -> dict[str, Any]:
        """Make a new store."""
        self.durable = how == "durable"
        if self.durable and not self.rival.has_durable:
            return {"skip": "has no durable put"}
        self.rival.open(directory, self.durable)
        return {}

    def close(self) -> dict[str, Any]:
        """Close it."""
        self.rival.close()
        return {}

    def single(self, size: str, seconds: str, threads: str) -> dict[str, Any]:
        """Closed loop, no clock around single puts."""
        if isinstance(self.rival, CFloor):
            return {"count": 1, "ns": self.rival.whole(int(size), int(threads))}
        if isinstance(self.rival, HotMemory):
            return {"skip": "stores nothing"}
        if isinstance(self.rival, CLog):
            return {"skip": "at a pace only"}
        number = int(threads)
        if number > 1 and not self.rival.has_threads:
            return {"skip": "one writer only"}
        body = b"x" * int(size)
        chunk = 1 if self.durable else CHUNK
        counts = [0] * number
        failed: list[BaseException] = []
        begin = time.perf_counter()
        end = begin + float(seconds)

        def work(which: int) -> None:
            try:
                put = self.rival.putter()
                while True:
                    for _ in repeat(None, chunk):
                        put(body)
                    counts[which] += chunk
                    if time.perf_counter() >= end:
                        break
            except BaseException as error:
                failed.append(error)

        if number == 1:
            work(0)  # sqlite3 and lmdb are used by the thread that opened them
        else:
            workers = [threading.Thread(target=work, args=(which,)) for which in range(number)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if failed:
            raise failed[0]
        took = time.perf_counter() - begin
        return {"count": sum(counts), "ns": took * 1e9 / sum(counts)}

    def keywords(self, size: str, seconds: str) -> dict[str, Any]:
        """As single."""
        if not isinstance(self.rival, Mqfast):
            return {"skip": "has one way to put"}
        body, put, count = b"x" * int(size), self.rival.put_by_keyword(), 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < float(seconds):
            for _ in repeat(None, CHUNK):
                put("Bench", body, tags="TagA")
            count += CHUNK
        return {"count": count, "ns": (time.perf_counter() - begin) * 1e9 / count}

    def batch(self, size: str, seconds: str) -> dict[str, Any]:
        """A thousand messages a call or transaction."""
        if isinstance(self.rival, CFloor):
            return {"count": 1, "ns": self.rival.whole(int(size), 1)}
        if type(self.rival).put_many is Rival.put_many:
            return {"skip": "has no batch"}
        bodies = [b"x" * int(size)] * BATCH
        count = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < float(seconds):
            self.rival.put_many(bodies)
            count += BATCH
        return {"count": count, "ns": (time.perf_counter() - begin) * 1e9 / count}

    def timed(self, size: str, seconds: str) -> dict[str, Any]:
        """Closed loop, each put timed."""
        if isinstance(self.rival, (CFloor, CLog, HotMemory)):
            return {"skip": "measured whole"}
        body, put, clock = b"x" * int(size), self.rival.putter(), time.perf_counter_ns
        values = array("Q")
        end = clock() + int(float(seconds) * 1e9)
        done = 0
        while done < end:
            begin = clock()
            put(body)
            done = clock()
            values.append(done - begin)
        return {"call": rounded(values)}

    def paced(self, size: str, rate: str, seconds: str, phase_ns: str) -> dict[str, Any]:
        """On a schedule, behind a lead that does not count: response times and service times."""
        if isinstance(self.rival, CFloor):
            return {"skip": "measured whole"}
        lead, count = int(rate) * LEAD_S, max(1, int(int(rate) * float(seconds)))
        due, call = array("Q", bytes(8 * (lead + count))), array("Q", bytes(8 * (lead + count)))
        period_ns = 1_000_000_000 // int(rate)
        if isinstance(self.rival, CLog):
            self.rival.paced(int(size), int(rate), due, call, int(phase_ns))
        else:
            body, put = b"x" * int(size), self.rival.putter()
            for _ in range(WARM_UP):
                put(body)
            gc.collect()
            gc.disable()
            try:
                with self.rival.meanwhile(int(size), int(rate)):
                    paced(put, body, period_ns, due, call, int(phase_ns))
            finally:
                gc.enable()
        return {"due": rounded(due[lead:]), "call": rounded(call[lead:])}

    def thread(self) -> dict[str, Any]:
        """Which thread puts, so that it can be kept on a processor."""
        return {"thread": threading.get_native_id()}


def main() -> None:
    """Serve until stdin ends."""
    # Whatever a library prints goes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    process = Process(sys.argv[1])
    for line in sys.stdin:
        name, *words = line.rstrip("\n").split("\t")
        try:
            answer = getattr(process, name)(*words)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
