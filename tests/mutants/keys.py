# SPDX-License-Identifier: MIT OR Apache-2.0
"""keys.py - names for places in the sources that hold no line numbers, and files of
remarks on them: a key at the margin, an indented remark below it, # for comments; and keys that
are left out, as no compiler takes them."""
import json
import os
import re
import sys


def short(text):
    text = ' '.join(text.split())
    return text if len(text) <= 110 else text[:90] + '...' + text[-17:]


def remarks(path, form):
    """{key: match of form}; form: a regular expression for what a remark has to be."""
    found, key = {}, None
    if not os.path.exists(path):
        return found
    with open(path) as f:
        for number, line in enumerate(f, 1):
            if line.startswith('#') or not line.strip():
                continue
            if not line[0].isspace():
                key = line.rstrip()
                continue
            match = re.fullmatch(form, line.strip())
            if key is None or not match or key in found:
                sys.exit(f'{path}:{number}: want a key, and indented below it {form}; each key once')
            found[key] = match
    return found


def leaving_out(path, build):
    """build(leave) makes what it can without these keys: (what it made, those that cannot be
    in it).  It is called until there are none.  They are kept in the file, from one run to
    the next.  Returns what was made, and how many are left out."""
    leave = set()
    if os.path.exists(path):
        with open(path) as f:
            leave = set(json.load(f))
    while True:
        made, bad = build(frozenset(leave))
        if not bad:
            return made, len(leave)
        leave |= bad
        with open(path, 'w') as f:
            json.dump(sorted(leave), f)
