#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""coverage.py [--no-run] - branch coverage of core/ under the steps of make check.

Builds the engine for the simulator, its tests, the library's, the fuzz targets and
the stress with clang's coverage, runs the steps of tests/mutants/run.py, and prints
how many branches were taken.  Each condition is two branches, each case one.  Not
counted: assertions (conditions that are never false, or the tests fail), planted bugs
(another build has them), and what the compiler knows to be constant.

A branch that was never taken needs its reason in untaken.txt.  It is named there by
file, function, and text, without line numbers.  Where the reason begins with "Seldom: ",
threads take it by chance.  --no-run: report what ran last.
"""
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '../..'))
sys.path.insert(0, os.path.join(ROOT, 'tests/mutants'))
import keys  # noqa: E402
import run as mutants  # noqa: E402

WORK = os.path.join(ROOT, 'target/coverage')
REASONS = os.path.join(ROOT, 'tests/coverage/untaken.txt')
FLAGS = ['-fprofile-instr-generate', '-fcoverage-mapping', '-fprofile-update=atomic']  # two threads add up
MORE_OF_THE_SAME = ('explore', 'seeds 4000', 'pace', 'isolation', 'short')  # minutes, and no branch that others do not take
UNCOUNTED = re.compile(r'FBY_ASSERT|FBY_BUG|FBY_STATIC_ASSERT')


def build():
    found = subprocess.run(['clang', '-fprofile-instr-generate', '-###', '-x', 'c', os.devnull], capture_output=True,
                           text=True).stderr
    # The linker gets clang's runtime before the C library, because cargo's linker is gcc.
    runtime = re.search(r'"(/\S*libclang_rt\.profile\S*\.a)"', found)[1]
    env = {'CFLAGS': ' '.join(FLAGS), 'CARGO_TARGET_DIR': os.path.join(WORK, 'build'), 'LLVM_PROFILE_FILE': os.devnull,
           'RUSTFLAGS': f'-Clink-arg=-u__llvm_profile_runtime -Clink-arg={runtime} -Clink-arg=-lc'}
    made = mutants.programs(env)
    engine = [f for f in sorted(glob.glob(f'{ROOT}/core/*/*.c') + glob.glob(f'{ROOT}/port/*.c'))
              if not os.path.basename(f).startswith('linux')]
    compiler = ['clang', '-w', '-std=gnu11', '-g', '-pthread', '-O1', *FLAGS, *(f'-I{ROOT}/{d}' for d in (
        'core', 'core/api', 'port', 'fuzz'))]
    programs = {'stress-asan': [f'{ROOT}/tests/stress/stress.c'], 'stress-logs-asan': [f'{ROOT}/tests/stress/logs.c']}
    for target in mutants.FUZZ_TARGETS:
        programs['fuzz-' + target] = mutants.fuzz_files(target)
    for name, files in programs.items():
        made[name] = os.path.join(WORK, name)
        subprocess.run([*compiler, *engine, *files, '-o', made[name]], check=True)
    return made


def measure():
    shutil.rmtree(WORK + '/core', ignore_errors=True)
    shutil.copytree(ROOT + '/core', WORK + '/core')  # as it was built
    made = build()
    for old in glob.glob(os.path.join(WORK, '*.profraw')):
        os.unlink(old)
    os.environ['LLVM_PROFILE_FILE'] = os.path.join(WORK, '%m.profraw')
    for name in ('stress', 'stress-logs'):  # steps that are left out
        made[name + '-tsan'] = made[name + '-asan']
    failed = []
    for name, command, _ in mutants.steps_of(made):
        if 'tsan' in name or name in MORE_OF_THE_SAME:
            continue
        wrong, words, _, seconds = mutants.once(command, 0)
        print(f'  {name:20} {seconds:6.1f} s{"  FAILED: " + wrong if wrong else ""}', flush=True)
        if wrong:
            failed.append(name)
            print(words[-2000:])
    profile = os.path.join(WORK, 'all.profdata')
    subprocess.run(['llvm-profdata', 'merge', '-o', profile, *glob.glob(os.path.join(WORK, '*.profraw'))], check=True)
    objects = sorted(set(made.values()))
    exported = subprocess.run(['llvm-cov', 'export', '--instr-profile', profile, objects[0],
                               *(f'--object={o}' for o in objects[1:])], check=True, capture_output=True).stdout
    with open(os.path.join(WORK, 'export.json'), 'wb') as f:
        f.write(exported)
    return not failed


def branches():
    """{key: times taken}, of all instances of a function together."""
    with open(os.path.join(WORK, 'export.json')) as f:
        functions = json.load(f)['data'][0]['functions']
    taken = collections.Counter()
    texts = {}
    at = {}  # (file, function, side, place) -> key
    seen = collections.Counter()
    for function in functions:
        name = function['name'].split(':')[-1]
        for l1, c1, l2, c2, yes, no, file, *_ in sorted(function.get('branches', [])):
            path = function['filenames'][file]
            if not path.startswith(ROOT + '/core/'):
                continue
            if path not in texts:
                with open(os.path.join(WORK, os.path.relpath(path, ROOT))) as f:
                    texts[path] = f.read().split('\n')
            lines = texts[path]
            text = lines[l1 - 1][c1 - 1:c2 - 1] if l1 == l2 else '\n'.join(
                [lines[l1 - 1][c1 - 1:], *lines[l1:l2 - 1], lines[l2 - 1][:c2 - 1]])
            if UNCOUNTED.search(lines[l1 - 1][:c1 - 1] + text) or text in ('true', 'false'):
                continue
            case = re.match(r'case\b|default\b', text)
            for side, count in (('true', yes), ('false', no)):
                if case and side == 'false':
                    continue
                place = (path, name, side, l1, c1, l2, c2)
                if place not in at:
                    key = f'{os.path.relpath(path, ROOT)} {name}: `{keys.short(text)}` {side}'
                    seen[key] += 1
                    at[place] = key + (f' #{seen[key]}' if seen[key] > 1 else '')
                taken[at[place]] += count
    return taken


def report():
    taken = branches()
    reasons = {key: match[1] for key, match in keys.remarks(REASONS, '(.+)').items()}
    never = sorted(k for k, n in taken.items() if n == 0)
    by_file = collections.defaultdict(lambda: [0, 0])
    for key, n in taken.items():
        by_file[key.split(' ')[0]][0] += n > 0
        by_file[key.split(' ')[0]][1] += 1
    for file, (some, all_) in sorted(by_file.items()):
        print(f'{some:6} of {all_:5}  {some / all_:6.1%}  {file}')
    for key in never:
        print(f'  never: {key}\n      {reasons.get(key, "NO REASON")}')
    stale = [k for k in reasons if k not in never and not (k in taken and reasons[k].startswith('Seldom: '))]
    for key in stale:
        print(f'  STALE: {"taken now" if key in taken else "no such branch"}: {key}')
    unexplained = [k for k in never if k not in reasons]
    print(f'branches of core: {len(taken) - len(never)} of {len(taken)} taken, '
          f'{(len(taken) - len(never)) / len(taken):.1%}; {len(unexplained)} of the rest without a reason')
    return not stale and not unexplained


if __name__ == '__main__':
    ran = '--no-run' in sys.argv or measure()
    sys.exit(0 if report() and ran else 1)
