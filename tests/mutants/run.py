#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""run.py core|port|kernel|rust [--sample N] [--seed S] [--jobs J] [--only TEXT] [--under CMD] [--fresh]
run.py report [NAME]...     score and survivors of what was run
run.py self-test            the tool itself: see self_test()

Runs the tests against the mutants that generate.py makes of core/ and port/: for
each, the steps by cost until one fails.  A step that never comes past a mutant
is not run for it.  Those of the library, its server and mounts are cargo-mutants', put
into one build by rust.py, with their tests and, in tier 3, those of the command; those
of kernel/ are tried in a guest (kernel.py).  What
came of each goes to out/mutants/NAME.jsonl at once, and the next run goes on after it;
--fresh begins again.  The order is that of a hash of seed and key, so a sample is a
beginning of the whole, and grows.

A mutant is found when a step fails, or needs ten times its processor time, or
does not end.  A survivor is judged by hand in judged.txt: equivalent, when no
test could tell it, or left, with the reason.
"""
import argparse
import collections
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import kernel
import keys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '../..'))
WORK = os.path.join(ROOT, 'target/mutants')
SOURCES = os.path.join(WORK, 'src')
OUT = os.path.join(ROOT, 'out/mutants')
JUDGED = os.path.join(ROOT, 'tests/mutants/judged.txt')

CORE = ['core/*/*.c', 'core/*/*.h']
PORT = ['port/*.c', 'port/*.h']
PREFIX = {'core': 'core/', 'port': 'port/', 'kernel': 'kernel/', 'rust': 'crates/'}  # of their keys
CARGO_MUTANTS = '27.1.0'
# the kernel's files, and tables of names
NOT_HERE = re.compile(r'port/linux|core/\w+/(errors\.|planted\.|port\.|format\.)')


# --- build ------------------------------------------------------------------

def sources():
    names = [os.path.relpath(f, ROOT) for p in CORE + PORT for f in sorted(glob.glob(os.path.join(ROOT, p)))]
    return [n for n in names if not NOT_HERE.match(n)]


CLANG = ['clang', '-w', '-std=gnu11', '-pthread', f'-I{SOURCES}/core', f'-I{SOURCES}/core/api', f'-I{SOURCES}/port']


def does_not_compile():
    """Numbers of mutants that the compiler refuses: those before each error.  Only
    files that changed since they compiled are looked at."""
    bad = set()
    where = os.path.join(WORK, 'syntax')
    os.makedirs(where, exist_ok=True)
    newest = max(os.path.getmtime(f) for f in glob.glob(f'{SOURCES}/**/*.h', recursive=True))
    for file in sorted(glob.glob(f'{SOURCES}/**/*.c', recursive=True)):
        good = os.path.join(where, os.path.basename(file))
        if os.path.basename(file).startswith('linux') or (
                os.path.exists(good) and os.path.getmtime(good) > max(newest, os.path.getmtime(file))):
            continue
        done = subprocess.run([*CLANG, '-ferror-limit=0', '-fsyntax-only', file], capture_output=True, text=True)
        if done.returncode == 0:
            open(good, 'w').close()
        for path, line, column in re.findall(r'^(\S+?):(\d+):(\d+): error:', done.stderr, re.M):
            with open(path) as f:
                text = f.read().split('\n')
            before = text[int(line) + 1][:int(column)]  # two lines were put in front
            numbers = re.findall(r'FBY_M\((\d+)\)', before)
            if not numbers:
                sys.exit(f'{path}:{line}: does not compile, and no mutant is the reason:\n{done.stderr}')
            bad.add(int(numbers[-1]))
    return bad


def not_compiled(mutants):
    """Numbers of mutants that the compiler never sees: those of other machines."""
    seen = set()
    for file in sorted(glob.glob(f'{SOURCES}/**/*.c', recursive=True)):
        if not os.path.basename(file).startswith('linux'):
            text = subprocess.run([*CLANG, '-E', '-P', file], check=True, capture_output=True, text=True).stdout
            seen.update(map(int, re.findall(r'fby_mutant_on\[(\d+)\]', text)))
    return set(range(1, len(mutants) + 1)) - seen


def write_if_new(path, data):
    """What is as it was keeps its time, so that nothing is built again for it."""
    if os.path.exists(path):
        with open(path, 'rb') as f:
            if f.read() == data:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        f.write(data)


def prune(copy, names):
    """Nothing stays in a copy that the tree has no more: a crate that is gone stops cargo."""
    for where, _, files in os.walk(copy, topdown=False):
        for name in files:
            if os.path.relpath(os.path.join(where, name), copy) not in names:
                os.unlink(os.path.join(where, name))
        if not os.listdir(where):
            os.rmdir(where)


def make_sources():
    """The copies with all mutants in them; returns these, and how many do not compile."""
    import generate

    def without(leave):
        files, mutants = generate.generate(ROOT, sources(), leave)
        for part in ('core', 'port'):
            for path in glob.glob(os.path.join(ROOT, part, '**/*.[ch]'), recursive=True):
                name = os.path.relpath(path, ROOT)
                if name not in files:
                    with open(path, 'rb') as f:
                        files[name] = f.read()
        for name in ('mutant.c', 'mutant.h'):
            with open(os.path.join(ROOT, 'tests/mutants', name), 'rb') as f:
                files['core/api/' + name] = f.read()  # which all see
        for name, data in files.items():
            write_if_new(os.path.join(SOURCES, name), data)
        prune(SOURCES, set(files))
        return mutants, {mutants[n - 1]['key'] for n in does_not_compile() or not_compiled(mutants)}

    return keys.leaving_out(os.path.join(WORK, 'refused.json'), without)


def programs(env, names=('forebay-sim', 'forebay-sys', 'forebay')):
    """Builds the simulator and the tests of these packages; {name: path}."""
    built = {}
    packages = [word for name in names for word in ('-p', name)]
    for command in [['build', '-p', 'forebay-sim']] * ('forebay-sim' in names) + [['test', '--no-run', *packages]]:
        done = subprocess.run(['cargo', *command, '--release', '--message-format=json-render-diagnostics'], cwd=ROOT,
                              env=dict(os.environ, CC='clang', **env), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit('cargo ' + ' '.join(command) + ' failed')
        for message in map(json.loads, done.stdout.splitlines()):
            if message['reason'] == 'build-script-executed' and 'forebay-sys' in message['package_id']:
                built['engine'] = os.path.join(message['out_dir'], 'libforebay_engine.a')
            kind = message['target']['kind'][0] if message.get('executable') else ''
            if kind == 'test' or (kind == 'bin' and not message['profile']['test']):
                built[message['target']['name']] = message['executable']
            elif kind == 'lib':
                built[message['target']['name'] + ' unit'] = message['executable']
    where = env.get('FOREBAY_SOURCES', ROOT)
    engine = built.pop('engine')
    for name, more in (('inside', ['-Wl,--wrap=fby_cpu']), ('maps', ['-O1'])):
        built[name] = os.path.join(env['CARGO_TARGET_DIR'], name)
        subprocess.run(['clang', '-w', '-std=gnu11', '-g', '-pthread', *env.get('CFLAGS', '').split(),
                        f'-I{where}/core', f'-I{where}/core/api', f'-I{where}/port', f'-I{ROOT}/fuzz',
                        *sorted(glob.glob(f'{ROOT}/tests/{name}/*.c')), engine, *more, '-o', built[name]], check=True)
    # Its posix.c and posix_fault.c are part of the test.
    port = [f for f in glob.glob(f'{where}/port/*_copy.c') if not os.path.basename(f).startswith('linux')]
    built['port'] = os.path.join(env['CARGO_TARGET_DIR'], 'port')
    subprocess.run(['clang', '-w', '-std=gnu11', '-O2', '-g', '-pthread', *env.get('CFLAGS', '').split(),
                    '-fsanitize=bounds', '-fsanitize-trap=bounds', f'-I{where}/core', f'-I{where}/core/api', f'-I{where}/port', *glob.glob(f'{ROOT}/tests/port/*.c'), *port,
                    *glob.glob(f'{where}/core/api/mutant.c'), '-o', built['port']], check=True)
    return built


def objects(flavour, flags, files):
    """Compiles what changed, for several programs of one flavour; returns the objects."""
    where = os.path.join(WORK, flavour)
    os.makedirs(where, exist_ok=True)
    newest = max(os.path.getmtime(f) for f in glob.glob(f'{SOURCES}/**/*.h', recursive=True))
    made = []

    def one(file):
        out = os.path.join(where, os.path.basename(file)[:-1] + 'o')
        made.append(out)
        if not os.path.exists(out) or os.path.getmtime(out) <= max(newest, os.path.getmtime(file)):
            subprocess.run([*CLANG, '-g', *flags, f'-I{ROOT}/fuzz', '-c', file, '-o', out], check=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, files))
    return made


def link(name, flags, made):
    out = os.path.join(WORK, name)
    subprocess.run(['clang', '-pthread', *flags, *made, '-o', out], check=True)
    return out


FUZZ_TARGETS = ('image', 'volumes', 'logs', 'ops', 'maps')


def fuzz_files(target):
    return [f'{ROOT}/fuzz/fuzz_{name}.c' for name in ('media', 'walk', 'walk_logs', 'run', target)] + sorted(
        glob.glob(f'{ROOT}/fuzz/fuzz_{target}_*.c'))


def build(tier):
    """Returns the mutants and the steps up to the tier: (name, command, shaky)."""
    mutants, refused = make_sources()
    print(f'mutants: {len(mutants)} in {len(sources())} files; {refused} more do not compile', flush=True)
    env = {'FOREBAY_SOURCES': SOURCES, 'CARGO_TARGET_DIR': os.path.join(WORK, 'build')}
    if tier < 3:
        return mutants, steps_of(programs(env, ('forebay-sys', 'forebay-sim')[:tier + 1]), tier)
    run = programs(env)
    engine = [f for f in sorted(glob.glob(f'{SOURCES}/**/*.c', recursive=True)) if not os.path.basename(f).startswith('linux')]
    stress = {'stress': [f'{ROOT}/tests/stress/stress.c'], 'stress-logs': [f'{ROOT}/tests/stress/logs.c']}
    asan = ['-O1', '-fno-omit-frame-pointer', '-fsanitize=address,undefined', '-fno-sanitize-recover=all']
    tsan = ['-O1', '-fno-omit-frame-pointer', '-fsanitize=thread']
    made = objects('asan', asan, engine)
    for name, files in stress.items():
        run[f'{name}-asan'] = link(f'{name}-asan', asan, made + objects('asan', asan, files))
        run[f'{name}-tsan'] = link(f'{name}-tsan', tsan, objects('tsan', tsan, engine + files))
    for target in FUZZ_TARGETS:
        files = fuzz_files(target)
        run['fuzz-' + target] = link('fuzz-' + target, asan, made + objects('asan', asan, files))
    return mutants, steps_of(run)


# Returns the steps of `make check` in portions, the cheap ones first.  Tier 0 tests single
# functions and is enough for the port.  Tier 1 takes seconds, 2 is the rest of the
# simulator, 3 has the engine's hosts, sanitizers and long runs.  A shaky step has threads
# and a clock of its own, and counts only if it fails twice.
def steps_of(run, tier=3):
    def tests(*names):
        return [(name, [run[name], '--test-threads=1'], False) for name in names]

    own = [('inside', [run['inside']], False), *tests('kernels'), ('port', [run['port']], False)]
    if tier == 0:
        return own
    sim = [run['forebay-sim'], '--threads', '1']
    # a copy, since a checkout may change the sources
    table = os.path.join(os.path.dirname(run['inside']), 'persist.txt')
    shutil.copy(os.path.join(ROOT, 'tests/golden/persist.txt'), table)
    steps = [
        *own,
        ('golden', [*sim, 'golden', '--file', table], False),
        *tests('decision_table', 'relocation', 'origin_errors', 'numbers', 'log_order'),
        ('seeds 20', [*sim, '--runs', '20'], False),
        ('explore 20', [*sim, 'explore', '--bound', '20', '--images', '1000'], False),
        ('logs 8', [*sim, 'logs', '--bound', '8', '--images', '1', '--every', '97'], False),
        ('statics 20', [*sim, 'explore', '--statics', '--bound', '20', '--images', '1000'], False),
        ('maps 2000', [run['maps'], 'explore', '2000'], False),
        ('maps damage', [run['maps'], 'damage'], False),
    ]
    if tier == 1:
        return steps
    steps += [
        ('seeds 100', [*sim, '--first', '21', '--runs', '80'], False),
        ('explore 200', [*sim, 'explore', '--bound', '200', '--images', '1000'], False),
        ('damage, every 29th', [*sim, 'damage', '--every', '29', '--bound', '2'], False),
        ('flips, every 8th', [*sim, 'flips', '--every', '8', '--data', '2000'], False),
        ('logs 64', [*sim, 'logs', '--bound', '64', '--images', '1000', '--every', '7'], False),
        ('statics 200', [*sim, 'explore', '--statics', '--bound', '200', '--images', '1000'], False),
        ('maps 30000', [run['maps'], 'explore', '30000'], False),
        *tests('pace', 'isolation', 'short', 'held', 'requests', 'forebay_sim unit'),
    ]
    if tier == 2:
        return steps
    known = {name for name, _, _ in steps} | {'forebay-sim', 'host', 'maps'}
    for test in sorted(set(run) - known):
        if not test.startswith(('stress', 'fuzz-')):
            steps.append((test, [run[test], '--test-threads=1'], True))
    steps.append(('host', [run['host'], '--test-threads=2'], True))
    for target in FUZZ_TARGETS:
        steps.append((f'fuzz {target}', [run[f'fuzz-{target}'], '-n', '1000', '-s', '1', '-o', '/dev/null',
                                         f'{ROOT}/fuzz/corpus/{target}'], False))
    return steps + [
        ('stress asan 3 s', [run['stress-asan'], '3', '1'], False),
        ('stress of statics asan 3 s', [run['stress-asan'], '3', '1', 'statics'], False),
        ('stress of logs asan 2 s', [run['stress-logs-asan'], '2'], False),
        ('stress of logs tsan 4 s', [run['stress-logs-tsan'], '4'], False),
        ('seeds 1500', [*sim, '--first', '101', '--runs', '1400'], False),
        ('explore 2000', [*sim, 'explore', '--bound', '2000', '--images', '1000'], False),
        ('stress tsan 8 s', [run['stress-tsan'], '8', '1'], False),
        ('stress of statics tsan 8 s', [run['stress-tsan'], '8', '1', 'statics'], False),
        ('explore', [*sim, 'explore', '--images', '1000'], False),
        ('seeds 4000', [*sim, '--first', '1501', '--runs', '2500'], False),
    ]


# --- running ----------------------------------------------------------------

running = set()
stopping = threading.Event()


def once(command, number, cpu=None, wall=None, reached=None):
    """Runs the command; returns (None or what was wrong, its last words, processor seconds, seconds)."""
    where = tempfile.mkdtemp(prefix='forebay-mutant-')
    env = dict(os.environ, FBY_MUTANT=str(number), TMPDIR=where, RUST_BACKTRACE='0',
               PROPTEST_DISABLE_FAILURE_PERSISTENCE='1',
               TSAN_OPTIONS='halt_on_error=1', ASAN_OPTIONS='handle_abort=0:detect_leaks=0')
    if reached:
        env['FBY_MUTANT_REACHED'] = reached

    def limits():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if cpu:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 5))

    start, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(where, 'output'), 'w+b') as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, preexec_fn=limits)
        running.add(process)
        wrong = None
        try:
            rc = process.wait(wall)
            if rc:
                wrong = 'processor time' if rc == -signal.SIGXCPU else f'exit {rc}'
        except subprocess.TimeoutExpired:
            wrong = 'no end'
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            running.discard(process)
        output.seek(max(0, output.seek(0, 2) - 8000))
        words = output.read().decode(errors='replace')
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(where, ignore_errors=True)
    return wrong, words, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.time() - start


TELLING = re.compile(r'VIOLATION|panicked|assert|ERROR|SUMMARY|forebay-sim:|differ|FAILED|stress:|fuzz:|is not|was')


def evidence(words):
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    return (telling or lines or [''])[0][:200]


def baseline(steps, file='baseline.json'):
    """{step: cost, and what it reaches} with no mutant: it must pass.  Kept until its program changes."""
    kept = os.path.join(WORK, file)
    base = {}
    if os.path.exists(kept):
        with open(kept) as f:
            base = json.load(f)
    for name, command, _ in steps:
        with open(command[0], 'rb') as f:
            of = hashlib.sha256(f.read() + json.dumps(command).encode()).hexdigest()
        if base.get(name, {}).get('of') == of:
            continue
        file = os.path.join(WORK, 'reached')
        open(file, 'wb').close()
        wrong, words, cpu, wall = once(command, 0, reached=file)
        if wrong:
            sys.exit(f'step {name} fails with no mutant: {wrong}\n{words}')
        with open(file, 'rb') as f:
            reached = [n for n, byte in enumerate(f.read()) if byte]
        base[name] = {'of': of, 'cpu': cpu, 'wall': wall, 'reached': reached}
        print(f'  {name:20} {wall:6.1f} s, {cpu:6.1f} s of processor, reaches {len(reached)}', flush=True)
        with open(kept, 'w') as f:
            json.dump(base, f)
    return {name: {**base[name], 'reached': set(base[name]['reached'])} for name, _, _ in steps}


def try_mutant(number, steps, base, before, wall=(20, 120)):
    """Runs the steps that it has not survived before; wall: when a step that only waits has no end,
    times its usual time, and seconds more."""
    passed = before.get('passed', [])
    result = {'result': 'survived' if passed else 'unreached', 'passed': passed}
    for name, command, shaky in steps:
        cost = base[name]
        if number not in cost['reached'] or name in passed:
            continue
        result['result'] = 'survived'
        for _ in range(2 if shaky else 1):
            wrong, words, _, _ = once(command, number, cpu=10 * cost['cpu'] + 5,
                                     wall=wall[0] * cost['wall'] + wall[1])
            if stopping.is_set():
                return None
            if not wrong:
                break
        if wrong:
            return {'result': 'found', 'step': name, 'how': wrong, 'evidence': evidence(words)}
        passed.append(name)
    return result


def ordered(mutants, name, seed, only):
    chosen = [(n, m) for n, m in enumerate(mutants, 1) if m['file'].startswith(name + '/') and only in m['key']]
    return sorted(chosen, key=lambda nm: hashlib.sha1(f"{seed} {nm[1]['key']}".encode()).digest())


def results_of(name):
    file = os.path.join(OUT, name + '.jsonl')
    if not os.path.exists(file):
        return {}
    with open(file) as f:
        return {r['key']: r for r in map(json.loads, f)}


def engine_mutants(name, args):
    """[(key, how to try it)] of core or port, in order."""
    mutants, steps = build(args.tier)
    base = baseline(steps)
    return [(m['key'], lambda before, n=n: try_mutant(n, steps, base, before))
            for n, m in ordered(mutants, name, args.seed, args.only)]


def finished(result, args):
    """Nothing more to do: found, or it went through the same steps already."""
    return result is not None and (result['result'] not in ('survived', 'unreached') or result['tier'] >= args.tier)


def run(name, args):
    os.makedirs(OUT, exist_ok=True)
    if name == 'kernel':
        everything = kernel.attempts(args, ordered, write_if_new)
    else:
        everything = rust_mutants(args) if name == 'rust' else engine_mutants(name, args)
    file = os.path.join(OUT, name + '.jsonl')
    if args.fresh and os.path.exists(file):
        os.unlink(file)
    chosen = everything[:args.sample]
    done = results_of(name)
    if args.again:
        done = {key: result for key, result in done.items() if result['result'] == 'found'}
    todo = [(key, attempt) for key, attempt in chosen if not finished(done.get(key), args)]
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()
    print(f'{name}: {len(chosen)} of {len(everything)} chosen, {len(chosen) - len(todo)} of them done before', flush=True)
    lock = threading.Lock()

    def one(key, attempt):
        if stopping.is_set():
            return
        began = time.time()
        with turn(args.under):
            result = attempt(done.get(key, {}))
        if result is None:
            return
        result.update(key=key, tier=args.tier, seconds=round(time.time() - began, 1), commit=commit)
        with lock, open(file, 'a') as f:
            f.write(json.dumps(result) + '\n')
        if result['result'] in ('survived', 'unreached'):
            print(f"  {result['result']:9} {result['seconds']:6.1f} s  {key}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            for future in [pool.submit(one, *each) for each in todo]:
                future.result()
        except KeyboardInterrupt:
            stopping.set()
            for process in list(running):
                os.killpg(process.pid, signal.SIGKILL)
    return report([name], {key for key, _ in everything} if not args.only else None, {key for key, _ in chosen})


class turn:
    """Holds a place of a command that runs others in turn, where several share a machine."""

    def __init__(self, under):
        self.under = under

    def __enter__(self):
        if self.under:
            self.process = subprocess.Popen([*shlex.split(self.under), 'sh', '-c', 'echo; read _'],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.process.stdout.read(1)

    def __exit__(self, *_):
        if self.under:
            self.process.communicate(b'\n')


# --- the library ------------------------------------------------------------

RUST_LIBRARIES = ('forebay', 'forebay-engine', 'forebay-server', 'forebay-mount')
# tests of the module, of core, of FUSE
NOT_RUN = re.compile(r'module$|create_killed$|fuzz_corpus$|^mount$')


def rust_env():
    """Most of a build was for debuggers, and for the speed of what others wrote."""
    return dict(os.environ, CARGO_TARGET_DIR=os.path.join(WORK, 'build-rust'), CARGO_INCREMENTAL='0',
                CARGO_PROFILE_DEV_DEBUG='0', RUSTFLAGS='-Awarnings -Aarithmetic_overflow -Aunconditional_panic')


def rust_packages(tier):
    names = RUST_LIBRARIES + ('forebay-cli',) * (tier == 3)
    return [word for name in names for word in ('-p', name)]


def cargo_copy(words):
    """cargo, in the copy with all mutants in it."""
    plain = ['--config', 'profile.dev.package."*".opt-level=0']
    return subprocess.run(['cargo', *words, *plain], cwd=os.path.join(WORK, 'copy'), env=rust_env(),
                          stdout=subprocess.PIPE, text=True)


def cargo_mutants():
    tool = os.path.join(WORK, 'cargo/bin/cargo-mutants')
    if not os.path.exists(tool):
        subprocess.run(['cargo', 'install', '-q', 'cargo-mutants', '--version', CARGO_MUTANTS, '--locked', '--root',
                        os.path.join(WORK, 'cargo')], check=True)
    return tool


def rust_listed():
    return json.loads(subprocess.run([cargo_mutants(), 'mutants', '--list', '--json', '--dir', ROOT, '--config',
                                      os.path.join(ROOT, '.cargo/mutants.toml')], check=True, capture_output=True,
                                     text=True).stdout)


def rust_sources():
    """The copy of the repository with all mutants in it; returns these, and how many rustc refuses."""
    import rust
    copy = os.path.join(WORK, 'copy')
    names = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard'], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.splitlines()
    listed = rust_listed()
    prune(copy, set(names))

    def without(leave):
        texts, mutants, lost = rust.generate(ROOT, [dict(m) for m in listed], leave)
        for name in names:
            if os.path.isfile(os.path.join(ROOT, name)):
                with open(os.path.join(ROOT, name), 'rb') as f:
                    write_if_new(os.path.join(copy, name), texts[name].encode() if name in texts else f.read())
        done = cargo_copy(['check', '--lib', *rust_packages(0), '--message-format=json'])
        bad, strange = rust.blamed(texts, done.stdout.splitlines()) if done.returncode else ((), ())
        if done.returncode and not bad:
            sys.exit('the copy does not compile, and no mutant is the reason:\n' + ''.join(strange))
        return (mutants, lost), {mutants[n - 1]['key'] for n in bad}

    (mutants, lost), refused = keys.leaving_out(os.path.join(WORK, 'refused-rust.json'), without)
    return mutants, lost, refused


def rust_steps(tier):
    """A step for each test: a mutant is tried by those alone that come past it.  Below tier 3
    without the tests of the command."""
    done = cargo_copy(['test', '--no-run', *rust_packages(tier), '--message-format=json-render-diagnostics'])
    if done.returncode:
        sys.exit('cargo test --no-run failed in the copy')
    steps = []
    for message in map(json.loads, done.stdout.splitlines()):
        if not message.get('executable') or not message['profile']['test']:
            continue
        program, kind = message['executable'], message['target']['kind'][0]
        name = message['target']['name'] + ('' if kind == 'test' else f' {kind}')
        if NOT_RUN.search(name):
            continue
        tests = subprocess.run([program, '--list'], capture_output=True, text=True, check=True).stdout
        for test in re.findall(r'^(\S+): test$', tests, re.M):
            steps.append((f'{name} {test}', [program, '--exact', test], True))
    return steps


def rust_mutants(args):
    """[(key, how to try it)]: cargo-mutants says what to change, rust.py puts it into one build."""
    mutants, lost, refused = rust_sources()
    print(f'mutants: {len(mutants) - len(lost)}; {refused + len(lost)} more rustc refuses', flush=True)
    steps = rust_steps(args.tier)
    base = baseline(steps, 'baseline-rust.json')
    steps.sort(key=lambda step: base[step[0]]['cpu'] + base[step[0]]['wall'])
    chosen = [(n, m['key']) for n, m in enumerate(mutants, 1) if args.only in m['key'] and n not in lost]
    chosen.sort(key=lambda each: hashlib.sha1(f'{args.seed} {each[1]}'.encode()).digest())
    return [(key, lambda before, n=n: try_mutant(n, steps, base, before, wall=(3, 40))) for n, key in chosen]


# --- report -----------------------------------------------------------------

def judgments():
    """{key: (verdict, reason)}"""
    found = keys.remarks(JUDGED, '(equivalent|left): (.+)')
    return {key: match.groups() for key, match in found.items()}


def keys_of(name):
    """The mutants of the tree as it is, those that no compiler takes among them; None without the tools."""
    try:
        import generate
        import rust
    except ImportError:
        return None
    if name != 'rust':
        files = kernel.sources() if name == 'kernel' else sources()
        return {m['key'] for m in generate.generate(ROOT, files, set())[1] if m['key'].startswith(PREFIX[name])}
    seen = collections.Counter()
    return {rust.key_of(mutant, seen) for mutant in rust_listed()}


def report(names, known=None, chosen=None):
    judged = judgments()
    ok = True
    for name in names:
        done = results_of(name)
        if chosen is not None:
            done = {key: r for key, r in done.items() if key in chosen}
        else:
            known = keys_of(name)
            gone = [key for key in done if known is not None and key not in known]
            done = {key: r for key, r in done.items() if key not in gone}
            print(f'\n{name}: {len(gone)} results are of code that is gone' if gone else '')
        count = collections.Counter(r['result'] for r in done.values())
        by = collections.Counter(r['step'] for r in done.values() if r['result'] == 'found')
        alive = [k for k, r in sorted(done.items()) if r['result'] in ('survived', 'unreached')]
        equivalent = [k for k in alive if judged.get(k, ('',))[0] == 'equivalent']
        rest = len(done) - len(equivalent) - count['unviable']
        print(f'\n{name}: {len(done)} run, {count["found"]} found, {count["survived"]} survived, '
              f'{count["unreached"]} never reached; {len(equivalent)} of these equivalent')
        print('  found by: ' + ', '.join(f'{step} {n}' for step, n in by.most_common()))
        for verdict in ('left', 'equivalent'):
            for key in alive:
                if judged.get(key, ('',))[0] == verdict:
                    print(f'  {verdict}: {key}\n      {judged[key][1]}')
        for key in alive:
            if key not in judged:
                print(f'  NOT JUDGED, {done[key]["result"]}: {key}')
        if rest:
            print(f'  score: {count["found"]} of {rest}: {count["found"] / rest:.3f}')
        for key in judged:
            if key in done and done[key]['result'] == 'found':
                print(f'  STALE: judged {judged[key][0]}, but {done[key]["step"]} finds it: {key}')
                ok = False
            elif known is not None and key.startswith(PREFIX[name]) and key not in known:
                print(f'  STALE: judged, but no such mutant: {key}')
                ok = False
    return ok


# --- the tool itself --------------------------------------------------------

def self_test():
    """No mutant: each step passes (baseline).  Mutants known to be bugs are found; one that
    changes nothing is not.  Both are put into a copy of a file, so they cannot go stale."""
    import generate
    with tempfile.TemporaryDirectory() as where:
        os.makedirs(os.path.join(where, 'core'))
        with open(os.path.join(where, 'core/known.c'), 'w') as f:
            f.write(KNOWN)
        files, mutants = generate.generate(where, ['core/known.c'], set())
        write_if_new(os.path.join(where, 'core/known.c'), files['core/known.c'])
        program = os.path.join(where, 'known')
        here = os.path.join(ROOT, 'tests/mutants')
        subprocess.run(['cc', '-w', f'-I{here}', f'{where}/core/known.c', f'{here}/mutant.c', '-o', program], check=True)
        results = {m['key']: bool(once([program], n)[0]) for n, m in enumerate(mutants, 1)}
        nothing = once([program], 0)[0]
        reached = os.path.join(where, 'reached')
        once([program], 0, reached=reached)
        with open(reached, 'rb') as f:
            noted = {n for n, byte in enumerate(f.read()) if byte}
    bad = [f'{"not " if want else ""}found: {key}' for key, want in EXPECTED.items() if results.get(key) != want]
    bad += [f'no such mutant: {key}' for key in EXPECTED if key not in results]
    if nothing:
        bad.append(f'the program fails with no mutant: {nothing}')
    if not noted or len(noted) == len(mutants):
        bad.append(f'{len(noted)} of {len(mutants)} noted as reached')
    print('\n'.join(bad) or f'self-test: {len(EXPECTED)} of {len(mutants)} mutants of known.c came out as they must')
    return not bad


def self_test_rust():
    """The same of rust.py: each kind of change is found, one in a part that never runs is not,
    and one that rustc refuses is the one that is blamed."""
    import rust
    with tempfile.TemporaryDirectory() as where:
        os.makedirs(os.path.join(where, 'crates/known/src'))
        for name, text in (('Cargo.toml', KNOWN_MANIFEST), ('src/lib.rs', KNOWN_RUST)):
            with open(os.path.join(where, 'crates/known', name), 'w') as f:
                f.write(text)
        listed = subprocess.run([cargo_mutants(), 'mutants', '--list', '--json', '--dir', f'{where}/crates/known'],
                                check=True, capture_output=True, text=True).stdout
        listed = [dict(m, file='crates/known/' + m['file']) for m in json.loads(listed)]
        program = os.path.join(where, 'known')
        changed = os.path.join(where, 'changed.rs')

        def without(leave):
            texts, mutants, lost = rust.generate(where, listed, leave)
            with open(changed, 'w') as f:
                f.write(texts['crates/known/src/lib.rs'])
            done = subprocess.run(['rustc', '--edition=2021', '-Awarnings', '--error-format=json', '-o', program, changed],
                                  capture_output=True, text=True)
            messages = [json.dumps({'reason': 'compiler-message', 'message': json.loads(line)})
                        for line in done.stderr.splitlines()] if done.returncode else []
            bad, _ = rust.blamed({os.path.normpath(changed): texts['crates/known/src/lib.rs']}, messages)
            return (mutants, lost), {mutants[n - 1]['key'] for n in bad}

        left = os.path.join(where, 'refused.json')
        (mutants, lost), _ = keys.leaving_out(left, without)
        with open(left) as f:
            leave = json.load(f)
        results = {m['key'].split(' ', 1)[1]: bool(once([program], n)[0]) for n, m in enumerate(mutants, 1)}
        nothing = once([program], 0)[0]
    refused = {key.split(' ', 1)[1] for key in leave}
    bad = [f'{"not " if want else ""}found: {key}' for key, want in EXPECTED_RUST.items() if results.get(key) != want]
    if nothing or lost or refused != REFUSED_RUST:
        bad.append(f'with no mutant: {nothing}; no place for {lost}; refused: {sorted(refused)}')
    print('\n'.join(bad) or f'self-test: {len(EXPECTED_RUST)} of {len(mutants)} mutants of known.rs came out as they must')
    return not bad


KNOWN = r'''#include <stdbool.h>
static int here;
static void note(int n)
{
	here += n;
}
static bool between(int n, int low, int high)
{
	return n >= low && n < high;
}
static int never(int n)
{
	return n + 7;
}
static int twice(int n)
{
	int unused = 0;

	unused = 1;
	note(n);
	return 2 * n;
}
int main(int argc, char **argv)
{
	if (argc > 9)
		return never(argc);
	if (twice(4) != 8 || here != 4)
		return 1;
	return between(3, 3, 5) && !between(5, 3, 5) && between(4, 3, 5) ? 0 : 2;
}
'''
EXPECTED = {
    'core/known.c note: del `here += n;`': True,
    'core/known.c note: skip `whole function`': True,
    'core/known.c between: cmp `n >= low` -> `>`': True,
    'core/known.c between: cmp `n < high` -> `<=`': True,
    'core/known.c between: drop `n >= low` -> `&& of n >= low && n < high`': False,
    'core/known.c never: arith `n + 7` -> `-`': False,
    'core/known.c twice: del `unused = 1;`': False,
    'core/known.c twice: del `note(n);`': True,
    'core/known.c twice: const `2 * n` -> `2 + 1`': True,
}


KNOWN_MANIFEST = '''[package]
name = "known"
version = "0.0.0"
edition = "2021"

[workspace]
'''
KNOWN_RUST = '''#[derive(Clone, Default)]
struct Size {
    high: i32,
    wide: i32,
}
const fn twice(n: i32) -> i32 {
    2 * n
}
fn between(n: i32, low: i32, high: i32) -> bool {
    n >= low && n < high
}
fn kind(n: i32) -> &'static str {
    match n {
        0 => "zero",
        n if n < 0 => "less",
        _ => "more",
    }
}
fn grow(n: &mut i32) {
    *n += 2;
}
fn size() -> Size {
    Size { high: 3, ..Default::default() }
}
fn never(n: i32) -> i32 {
    n - 7
}
fn main() {
    let mut n = -4;
    grow(&mut n);
    let fits = between(3, 3, 5) && !between(5, 3, 5) && between(4, 3, 5);
    let kinds = kind(0) == "zero" && kind(n) == "less" && kind(1) == "more";
    let sizes = size().high == 3 && size().wide == 0 && twice(n) == -4;
    if std::env::args().count() > 9 {
        never(n);
    }
    std::process::exit(i32::from(!(fits && kinds && sizes && n == -2)));
}
'''
EXPECTED_RUST = {
    'replace between -> bool with true': True,
    'replace && with || in between': True,
    'replace >= with < in between': True,
    'replace < with <= in between': True,
    'delete match arm 0 in kind': True,
    'replace match guard n < 0 with true in kind': True,
    'replace match guard n < 0 with false in kind': True,
    'replace grow with ()': True,
    'replace += with -= in grow': True,
    'delete field high from struct Size expression in size': True,
    'delete ! in main': True,
    'replace never -> i32 with 0': False,
    'replace - with + in never': False,
}
# Code that runs during compilation cannot ask for a number.
REFUSED_RUST = {f'replace twice -> i32 with {n}' for n in (0, 1, -1)} | {f'replace * with {o} in twice' for o in '+/'}


def main():
    global OUT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['core', 'port', 'kernel', 'rust', 'report', 'self-test'])
    parser.add_argument('names', nargs='*')
    parser.add_argument('--sample', type=int, default=None)
    parser.add_argument('--seed', default='1')
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    parser.add_argument('--only', default='', help='mutants whose key contains this')
    parser.add_argument('--under', default='', help='a command that lets several run in turn')
    parser.add_argument('--out', default=OUT, help='where the results are')
    parser.add_argument('--fresh', action='store_true', help='forget earlier results')
    parser.add_argument('--again', action='store_true', help='run what survived once more')
    parser.add_argument('--tier', type=int, default=3, choices=[0, 1, 2, 3],
                        help='0, 1, 2: only the steps that are cheap; a run of a higher one goes on from there')
    args = parser.parse_args()
    OUT = os.path.abspath(args.out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.what == 'self-test':
        return self_test() & self_test_rust()
    if args.what == 'report':
        return report(args.names or list(PREFIX))
    return run(args.what, args)


if __name__ == '__main__':
    sys.exit(0 if main() else 1)
