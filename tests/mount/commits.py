#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commits that are counted: what programs are promised, and whether it is there.

    commits.py run KIND DIRECTORY ACKNOWLEDGED      until it is killed
    commits.py verify KIND DIRECTORY ACKNOWLEDGED   1: something acknowledged is not there

KIND is sqlite-delete, sqlite-truncate, sqlite-wal (synchronous=FULL), maildir, postgres or
etcd.
The number of each commit goes to the file ACKNOWLEDGED after the commit has returned; it
lies where no cut reaches it, and sockets beside it.  What a commit writes follows from its number, so what is
found is compared byte by byte.
"""
import base64
import http.client
import json
import os
import random
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time


def body(number):
    source = random.Random(number)
    return source.randbytes(source.choice([10, 200, 3000, 20000]))


class Sqlite:
    def __init__(self, directory, journal, outside):
        self.path = os.path.join(directory, journal + ".db")
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(f"PRAGMA journal_mode = {journal}")
        self.db.execute("CREATE TABLE IF NOT EXISTS t (number INTEGER PRIMARY KEY, body BLOB)")

    def commit(self, number):
        self.db.execute("BEGIN")
        self.db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (number, body(number)))
        self.db.execute("COMMIT")

    def found(self):
        for (answer,) in self.db.execute("PRAGMA integrity_check"):
            if answer != "ok":
                sys.exit(f"integrity check of {self.path}: {answer}")
        return dict(self.db.execute("SELECT number, body FROM t"))


class Maildir:
    def __init__(self, directory, _, outside):
        self.directory = directory
        for name in "tmp", "new":
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        self.new = os.open(os.path.join(directory, "new"), os.O_RDONLY | os.O_DIRECTORY)

    def commit(self, number):
        # Each message is a file that all later rounds read.
        time.sleep(0.002)
        name = os.path.join(self.directory, "tmp", str(number))
        with open(name, "wb") as mail:
            mail.write(body(number))
            mail.flush()
            os.fsync(mail.fileno())
        os.rename(name, os.path.join(self.directory, "new", str(number)))
        os.fsync(self.new)

    def found(self):
        mails = {}
        for name in os.listdir(os.path.join(self.directory, "new")):
            with open(os.path.join(self.directory, "new", name), "rb") as mail:
                mails[int(name)] = mail.read()
        return mails


class Postgres:
    """A server of its own, as a user of its own, spoken to over its socket."""

    USER = 65534

    def __init__(self, directory, _, outside):
        os.makedirs(directory, exist_ok=True)
        os.chown(directory, self.USER, self.USER)
        os.chmod(directory, 0o700)
        data = os.path.join(directory, "data")
        self.sockets = tempfile.mkdtemp(dir=outside)
        os.chown(self.sockets, self.USER, self.USER)
        own = {"user": self.USER, "group": self.USER, "extra_groups": [], "cwd": "/", "stdin": subprocess.DEVNULL}
        own["env"] = {**os.environ, "LC_ALL": "C", "PGUSER": "postgres"}
        if not os.path.exists(os.path.join(data, "made")):
            subprocess.run(["rm", "-rf", data], check=True)
            made = ["initdb", "-A", "trust", "-U", "postgres", "-D", data]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **own)
            with open(os.path.join(data, "made"), "wb") as made:
                os.fsync(made.fileno())
            directory = os.open(data, os.O_RDONLY)
            os.fsync(directory)
        # A killed server has left the file, and another process may have its number.
        left = os.path.join(data, "postmaster.pid")
        if os.path.exists(left):
            lines = open(left).read().splitlines()
            if len(lines) > 6:
                subprocess.run(["ipcrm", "-m", lines[6].split()[1]], stderr=subprocess.DEVNULL, check=False)
            os.unlink(left)
        options = ["-k", self.sockets, "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=5", "-c", "max_wal_size=64MB"]
        # No shared memory may outlive a killed server.
        options += ["-c", "dynamic_shared_memory_type=mmap"]
        self.server = subprocess.Popen(["postgres", "-D", data, *options], stderr=subprocess.DEVNULL, **own)
        for _ in range(1200):
            try:
                self.connect()
                break
            except (OSError, RuntimeError):
                if self.server.poll() is not None:
                    sys.exit(f"postgres ended with {self.server.returncode}")
                time.sleep(0.05)
        else:
            sys.exit("postgres does not answer")
        self.query("CREATE TABLE IF NOT EXISTS t (number bigint PRIMARY KEY, body text)")

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{self.sockets}/.s.PGSQL.5432")
        start = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!i", len(start) + 4) + start)
        self.answer()

    def exactly(self, n):
        got = b""
        while len(got) < n:
            more = self.socket.recv(n - len(got))
            if not more:
                raise RuntimeError("the connection was closed")
            got += more
        return got

    def answer(self):
        """The rows, up to ready for query."""
        rows = []
        while True:
            kind, length = struct.unpack("!ci", self.exactly(5))
            message = self.exactly(length - 4)
            if kind == b"E":
                raise RuntimeError(message.decode(errors="replace"))
            if kind == b"D":
                columns, at, row = struct.unpack("!h", message[:2])[0], 2, []
                for _ in range(columns):
                    (n,) = struct.unpack("!i", message[at : at + 4])
                    row.append(message[at + 4 : at + 4 + n].decode())
                    at += 4 + n
                rows.append(row)
            if kind == b"Z":
                return rows

    def query(self, text):
        text = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        return self.answer()

    def commit(self, number):
        self.query(f"INSERT INTO t VALUES ({number}, '{body(number).hex()}') ON CONFLICT DO NOTHING")

    def found(self):
        rows = self.query("SELECT number, body FROM t")
        self.server.send_signal(signal.SIGINT)
        self.server.wait()
        return {int(number): bytes.fromhex(body) for number, body in rows}


class Etcd:
    """A member alone, spoken to through its gateway of JSON."""

    def __init__(self, directory, _, outside):
        client, peer = self.free_ports(2)
        urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
        options = ["--name", "one", "--data-dir", os.path.join(directory, "data")]
        for kind, url in urls.items():
            options += [f"--listen-{kind}-urls", url]
        options += ["--advertise-client-urls", urls["client"], "--initial-advertise-peer-urls", urls["peer"]]
        options += ["--initial-cluster", f"one={urls['peer']}"]
        # etcd has to write snapshots and shorten its log too, and to start soon.
        options += ["--snapshot-count", "300", "--heartbeat-interval", "50", "--election-timeout", "500"]
        log = open(os.path.join(outside, "etcd.log"), "wb")
        self.server = subprocess.Popen(["etcd", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.connection = http.client.HTTPConnection("127.0.0.1", client, timeout=60)
        for _ in range(1200):
            try:
                self.ask("range", {"key": self.coded(b"there?")})
                break
            except (OSError, RuntimeError, http.client.HTTPException):
                self.connection.close()
                if self.server.poll() is not None:
                    sys.exit(f"etcd ended with {self.server.returncode}: {open(log.name).read()[-2000:]}")
                time.sleep(0.05)
        else:
            sys.exit("etcd does not answer")

    @staticmethod
    def free_ports(count):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        return ports

    @staticmethod
    def coded(bytes):
        return base64.b64encode(bytes).decode()

    def ask(self, what, request):
        self.connection.request("POST", f"/v3/kv/{what}", json.dumps(request))
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(text.decode(errors="replace"))
        return json.loads(text)

    def commit(self, number):
        self.ask("put", {"key": self.coded(b"%020d" % number), "value": self.coded(body(number))})

    def found(self):
        """In pieces: an answer has 4 MiB at most."""
        found, after = {}, b"0"
        while True:
            piece = self.ask("range", {"key": self.coded(after), "range_end": self.coded(b"9"), "limit": 100})
            for pair in piece.get("kvs", []):
                after = base64.b64decode(pair["key"])
                found[int(after)] = base64.b64decode(pair["value"])
            after += b"\0"
            if not piece.get("more"):
                break
        self.server.terminate()
        self.server.wait()
        return found


KINDS = {"sqlite": Sqlite, "maildir": Maildir, "postgres": Postgres, "etcd": Etcd}


def main():
    what, kind, directory, path = sys.argv[1:]
    family, _, journal = kind.partition("-")
    store = KINDS[family](directory, journal, os.path.dirname(os.path.abspath(path)))
    acknowledged = [int(line) for line in open(path).read().split("\n")[:-1]] if os.path.exists(path) else []
    if what == "run":
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        # A number that was tried before the cut may be there or not, so it is not used
        # again.
        number = max(acknowledged, default=0) + 1000
        while True:
            number += 1
            store.commit(number)
            os.write(log, b"%d\n" % number)
    found = store.found()
    lost = [number for number in acknowledged if found.get(number) != body(number)]
    other = [number for number, bytes in found.items() if bytes != body(number)]
    print(f"{kind}: {len(acknowledged)} acknowledged, {len(lost)} lost, {len(other)} wrong, {len(found)} found")
    if lost or other:
        sys.exit(f"{kind}: lost {lost[:10]}, wrong {other[:10]}")


main()
