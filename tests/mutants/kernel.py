# SPDX-License-Identifier: MIT OR Apache-2.0
"""kernel.py - mutants of kernel/, for run.py: all of them in one forebay.ko, and a second
module that says which one is on.  A guest tries one after the other, by scripts of
tests/vm; where a mutant leaves anything behind, the next guest goes on."""
import atexit
import glob
import hashlib
import json
import os
import queue
import re
import subprocess
import time

import keys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '../..'))
WORK = os.path.join(ROOT, 'target/mutants')
SOURCES = os.path.join(WORK, 'kernel')
# Scripts of the guest and their arguments by tier, the cheap ones first.
STEPS = {0: ['requests:native'],
         1: ['requests:target'],
         2: [f'waits:{kind}:{item}' for kind in ('native', 'target')
             for item in ('late', 'past', 'rest', 'drains', 'full', 'middle', 'gone', 'pieces')],
         3: ['faults:native', 'faults:target', 'smoke', 'native', 'flush:native:3', 'bypass', 'neighbours', 'attach']}
LOST = re.compile(r'Kernel panic|soft lockup')  # a CPU that does not come back


def vm(*words, **options):
    return subprocess.Popen([os.path.join(ROOT, 'tests/vm/run'), 'mutants', *words], text=True, **options)


def sources():
    return [os.path.relpath(f, ROOT) for f in sorted(glob.glob(os.path.join(ROOT, 'kernel/*.c')))]


def build(write_if_new):
    """Builds the modules; returns the mutants, and how many are left out."""
    import generate

    def without(leave):
        files, mutants = generate.generate(ROOT, sources(), leave)
        for name, data in files.items():
            write_if_new(os.path.join(SOURCES, name), data)
        for name, to in (('mutant.h', 'mutant.h'), ('mutant_kernel.c', 'mutant.c')):
            with open(os.path.join(ROOT, 'tests/mutants', name), 'rb') as f:
                write_if_new(os.path.join(SOURCES, 'kernel', to), f.read())
        process = vm('build', SOURCES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate()[0]
        bad = blamed(said)
        if not bad and process.returncode:
            raise SystemExit('the module with all mutants does not build, and none is the reason:\n' + said[-3000:])
        return mutants, {mutants[n - 1]['key'] for n in bad or not_compiled(said, mutants)}

    return keys.leaving_out(os.path.join(WORK, 'refused-kernel.json'), without)


def not_compiled(said, mutants):
    """Numbers of those that are for other kernels, by what the preprocessor leaves."""
    seen = set()
    for file in glob.glob(os.path.join(re.findall(r'^preprocessed: (.*)$', said, re.M)[0], '*.i')):
        with open(file) as f:
            seen.update(map(int, re.findall(r'fby_mutant_on\[(\d+)\]', f.read())))
    return set(range(1, len(mutants) + 1)) - seen


def blamed(said):
    """Numbers of the mutants before each error of the compiler."""
    bad = set()
    for name, line, column in re.findall(r'^\S*?(\w+\.c):(\d+):(\d+): error:', said, re.M):
        with open(os.path.join(SOURCES, 'kernel', name)) as f:
            text = f.read().split('\n')[int(line) + 1]  # two lines were put in front
        numbers = re.findall(r'FBY_M\((\d+)\)', text[:int(column)]) or re.findall(r'FBY_M\((\d+)\)', text)
        if numbers:
            bad.add(int(numbers[-1]))
    return bad


class Guest:
    """Booted when it is needed.  A line to it is a number, seconds of silence and a step; it
    tells how the step begins and ends, and ends itself where a mutant left anything."""

    def __init__(self, name='mutants'):
        self.name, self.console = name, os.path.join(ROOT, f'out/vm/{name}.console')
        self.process = None

    def start(self):
        for _ in range(3):  # a busy machine
            open(self.console, 'w').close()
            self.at = 0
            self.process = vm('try', self.name, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True)
            if next(self.told(1800), 'nothing') == 'ready':
                return
            self.stop()
        raise SystemExit(f'no guest for the mutants; console: {self.console}')

    def told(self, limit):
        """Its words, as they come; ends when it is gone, has said nothing for so long, or its kernel is lost."""
        last = time.time()
        while self.process:
            with open(self.console, errors='replace') as f:
                lines = f.read().split('\n')[:-1]
            new, self.at = lines[self.at:], len(lines)
            gone = (self.process.poll() is not None or time.time() - last > limit
                    or any(LOST.search(line) for line in new))
            for line in new:
                if line.startswith('mutant: '):
                    last = time.time()
                    yield line[len('mutant: '):].rstrip()
            if gone:
                self.stop()
            time.sleep(0.5)

    def tries(self, number, silent, step, limit=3600):
        """Yields the words of each line about it: begins|reached|passed|failed, ..."""
        if self.process and self.process.poll() is not None:
            self.stop()  # by itself
        if not self.process:
            self.start()
        self.process.stdin.write(f'{number} {silent} {step}\n')
        self.process.stdin.flush()
        for line in self.told(limit):
            words = line.split()
            if words in ([str(number), 'done'], [str(number), 'left']):
                if words[1] == 'left':
                    self.stop()
                return
            if words[0] == str(number):
                yield words[2:]
        yield ['gone']

    def stop(self):
        process, self.process = self.process, None
        if process and process.poll() is None:
            os.killpg(process.pid, 15)
        if process:
            process.wait()


    def why_gone(self):
        with open(self.console, errors='replace') as f:
            words = re.findall(r'(?:BUG|Oops|Kernel panic|general protection|WARNING)[^\r\n]*', f.read())
        return words[0] if words else 'it hangs'


def baseline(guest, steps, text):
    """{step: seconds, the longest silence, which mutants it comes past}, kept for this text of the module."""
    kept = os.path.join(WORK, 'baseline-kernel.json')
    base = {}
    if os.path.exists(kept):
        with open(kept) as f:
            base = {name: entry for name, entry in json.load(f).items() if entry['of'] == text}
    for step in steps:
        if step in base:
            continue
        reached = 0
        for what, *words in guest.tries(-1, 1800, step):
            if what == 'reached':
                reached = int(words[0].replace(',', ''), 16)
            elif what == 'passed':
                base[step] = {'of': text, 'seconds': int(words[0]), 'silent': int(words[1]),
                              'reached': [n for n in range(8192) if reached >> n & 1]}
        if step not in base:
            raise SystemExit(f'step {step} fails with no mutant; console: {guest.console}')
        print(f'  {step:20} {base[step]["seconds"]:4} s, silent for {base[step]["silent"]}, '
              f'comes past {len(base[step]["reached"])}', flush=True)
        with open(kept, 'w') as f:
            json.dump(base, f)
    return {step: {**base[step], 'reached': set(base[step]['reached'])} for step in steps}


def try_step(guest, number, step, silent, limit):
    """None when the step passes, else how it fails and what it said."""
    begun = False
    for what, *words in guest.tries(number, silent, step, limit):
        if what == 'begins':
            begun = True
        elif what == 'passed':
            return None
        elif what == 'failed':
            said = ' '.join(words[2:])
            return ('silent', f'for {silent} s after: {said}') if words[1] in ('124', '137') else ('code ' + words[1], said)
    return ('the guest ends', guest.why_gone()) if begun else try_step(guest, number, step, silent, limit)  # it died by itself


def try_mutant(guests, number, base, before):
    """Runs the steps that it has not survived before, until one fails.  One that is only
    silent, or whose guest is, has to be so twice: the machine may be busy."""
    passed = list(before.get('passed', []))
    steps = [step for step in base if number in base[step]['reached'] and step not in passed]
    guest = guests.get()
    try:
        for step in steps:
            for _ in range(2):
                failed = try_step(guest, number, step, 30 + 5 * base[step]['silent'], 300 + 4 * base[step]['seconds'])
                if not failed or not (failed[0] == 'silent' or failed[1] == 'it hangs'):
                    break
            if failed:
                return {'result': 'found', 'step': step, 'how': failed[0], 'evidence': failed[1]}
            passed.append(step)
    finally:
        guests.put(guest)
    return {'result': 'survived' if passed else 'unreached', 'passed': passed}


def attempts(args, ordered, write_if_new):
    """[(key, how to try it)], in order."""
    mutants, refused = build(write_if_new)
    print(f'mutants: {len(mutants)} in kernel/; {refused} more do not compile', flush=True)
    text = hashlib.sha256(b''.join(open(f, 'rb').read() for f in sorted(glob.glob(SOURCES + '/kernel/*.c')))).hexdigest()
    guests = queue.Queue()
    for n in range(args.jobs):
        guests.put(Guest(f'mutants-{n}'))
        atexit.register(guests.queue[-1].stop)
    base = baseline(guests.queue[0], [step for tier in range(args.tier + 1) for step in STEPS[tier]], text)
    return [(m['key'], lambda before, n=n: try_mutant(guests, n, base, before))
            for n, m in ordered(mutants, 'kernel', args.seed, args.only)]
