# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commits a second of one connection, a row of 200 bytes each.

	sqlite_commits.py FILE JOURNAL SECONDS	delete or wal; synchronous=FULL
"""
import sqlite3
import sys
import time

path, journal, seconds = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None)
db.execute(f"PRAGMA journal_mode = {journal}")
db.execute("PRAGMA synchronous = FULL")
db.execute("CREATE TABLE IF NOT EXISTS t (i INTEGER PRIMARY KEY, b BLOB)")
began, done = time.monotonic(), 0
while time.monotonic() - began < float(seconds):
    db.execute("INSERT INTO t (b) VALUES (?)", (bytes(200),))
    done += 1
print(f"{done / (time.monotonic() - began):.1f}")
