# SPDX-License-Identifier: MIT OR Apache-2.0
"""rust.py - puts what cargo-mutants would change into one build, as generate.py does for C.

cargo-mutants says which changes there are (`--list --json`); each is written here beside
what it replaces, behind a number that FBY_MUTANT chooses when a program starts:

  a function's result    if on(n) { return ...; } before its first statement
  an operator            its operands once, then the one operator or the other
  an arm of a match      a guard that refuses it; a guard that is always true, or false
  a field left out       the value of the struct that fills the rest

A change that rustc refuses to see beside the others (in a const fn, or of a type that has
no such operator) is left out and counted.
"""
import collections
import json
import os
import re

import tree_sitter
import tree_sitter_rust

from rewritten import Rewritten

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
ON = 'crate::fby_mutant::on({})'
MARK = re.compile(r'crate::fby_mutant::on\((\d+)\)')
COMPARE = {'==', '!=', '<', '<=', '>', '>='}


def key_of(mutant, seen):
    """Its name without line and column; a count follows where a function has it twice."""
    key = re.sub(r':\d+:\d+:', '', mutant['name'], count=1)
    seen[key] += 1
    return key if seen[key] == 1 else f'{key} #{seen[key]}'


class File(Rewritten):
    """One file, and its mutants: (number, what cargo-mutants says of it)."""

    def __init__(self, text, mutants):
        self.lines = text.split('\n')
        self.source = text.encode()
        self.tree = PARSER.parse(self.source)
        self.at = collections.defaultdict(list)  # (what, node id) -> [(number, replacement)]
        self.lost = []
        for number, mutant in mutants:
            place = self.place(mutant)
            if place is None:
                self.lost.append(number)
            else:
                self.at[place].append((number, mutant['replacement']))

    def offset(self, where):
        line, column = where['line'] - 1, where['column'] - 1
        return sum(len(text.encode()) + 1 for text in self.lines[:line]) + len(self.lines[line][:column].encode())

    def place(self, mutant):
        start, end = (self.offset(mutant['span'][side]) for side in ('start', 'end'))
        node = self.tree.root_node.descendant_for_byte_range(start, end)
        genre = mutant['genre']
        if genre in ('FnValue', 'StructField'):
            node = self.tree.root_node.descendant_for_byte_range(start, start + 1)
        if genre == 'FnValue':
            while node is not None and node.type != 'function_item':
                node = node.parent
            return node and ('body', node.child_by_field_name('body').id)
        if genre in ('BinaryOperator', 'UnaryOperator'):
            wanted = ('unary_expression',) if genre[0] == 'U' else ('binary_expression', 'compound_assignment_expr')
            return ('operator', node.parent.id) if node.parent.type in wanted else None
        wanted = {'MatchArm': 'match_arm', 'MatchArmGuard': 'match_pattern', 'StructField': 'field_initializer'}[genre]
        while node is not None and not node.type.endswith(wanted):
            node = node.parent
        if node is not None and genre == 'MatchArm' and not any(map(self.takes_all, node.parent.children)):
            return None  # no other arm would match its values
        return node and ('guard' if genre == 'MatchArmGuard' else 'node', node.id)

    def takes_all(self, arm):
        pattern = arm.child_by_field_name('pattern')
        return pattern is not None and re.fullmatch('_|[a-z]\\w*', self.text(pattern)) is not None

    def emit_block(self, node):
        text = self.inside(node)
        returns = ''.join(f' if {ON.format(n)} {{ return {value}; }}' for n, value in self.at['body', node.id])
        return text.replace('{', '{' + returns, 1) if returns else text

    def chosen(self, mutants, form, before):
        """form(each other operator) if its number is on, and else form(the one that is there)."""
        others = ''.join(f'if {ON.format(n)} {{ {form(other)} }} else ' for n, other in mutants)
        return f'{others}{{ {form(before)} }}'

    def emit_binary_expression(self, node):
        mutants = self.at['operator', node.id]
        if not mutants:
            return self.inside(node)
        a, b = (self.emit(node.child_by_field_name(side)) for side in ('left', 'right'))
        operator = self.text(node.child_by_field_name('operator'))
        if operator in ('&&', '||'):
            return f'({{ let fby_a: bool = {a}; {self.chosen(mutants, lambda o: f"fby_a {o} {b}", operator)} }})'
        if operator in COMPARE:
            text = self.chosen(mutants, lambda o: f'*fby_a {o} *fby_b', operator)
            return f'(match (&({a}), &({b})) {{ (fby_a, fby_b) => {text} }})'
        text = self.chosen(mutants, lambda o: f'fby_a {o} fby_b', operator)
        return f'(match (({a}), ({b})) {{ (fby_a, fby_b) => {text} }})'

    def emit_compound_assignment_expr(self, node):
        mutants = self.at['operator', node.id]
        if not mutants:
            return self.inside(node)
        a, b = (self.emit(node.child_by_field_name(side)) for side in ('left', 'right'))
        operator = self.text(node.child_by_field_name('operator'))
        return f'({self.chosen(mutants, lambda o: f"{a} {o} {b}", operator)})'

    def emit_unary_expression(self, node):
        mutants = self.at['operator', node.id]
        if not mutants:
            return self.inside(node)
        operator, operand = node.children[0], node.children[-1]
        text = self.chosen(mutants, lambda o: f'{o}fby_a', self.text(operator))
        return f'({{ let fby_a = {self.emit(operand)}; {text} }})'

    def emit_match_arm(self, node):
        numbers = [n for n, _ in self.at['node', node.id]]
        pattern = node.child_by_field_name('pattern')
        if pattern is None:
            return self.inside(node)
        condition = pattern.child_by_field_name('condition')
        guard = self.emit(condition) if condition is not None else ''
        for n, value in self.at['guard', pattern.id]:
            guard = f'({ON.format(n)} || ({guard}))' if value == 'true' else f'(!{ON.format(n)} && ({guard}))'
        if not numbers and condition is None:
            return self.inside(node)
        for n in numbers:
            guard = f'(!{ON.format(n)} && ({guard}))' if guard else f'!{ON.format(n)}'
        if condition is None:
            return self.inside(node, {pattern.id: f'{self.inside(pattern)} if {guard}'})
        return self.inside(node, {pattern.id: self.inside(pattern, {condition.id: guard})})

    def emit_field_initializer(self, node):
        mutants = self.at['node', node.id]
        if not mutants:
            return self.inside(node)
        whole = node.parent.parent
        rest = [c for c in node.parent.children if c.type == 'base_field_initializer'][0]
        kind, rest = self.text(whole.child_by_field_name('name')), self.text(rest)[2:]
        name = self.text(node.children[0])
        value = self.emit(node.child_by_field_name('value')) if node.type == 'field_initializer' else name
        number = mutants[0][0]
        return f'{name}: if {ON.format(number)} {{ let fby_rest: {kind} = {rest}; fby_rest.{name} }} else {{ {value} }}'

    emit_shorthand_field_initializer = emit_field_initializer


SWITCH = '''
/// Which change is on; written by tests/mutants/rust.py.
#[allow(clippy::all)]
pub(crate) mod fby_mutant {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::LazyLock;

    static CHOSEN: LazyLock<u64> = LazyLock::new(|| {
        std::env::var("FBY_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    });
    static REACHED: LazyLock<Option<std::fs::File>> = LazyLock::new(|| {
        let path = std::env::var_os("FBY_MUTANT_REACHED")?;
        Some(std::fs::OpenOptions::new().write(true).create(true).open(path).unwrap())
    });
    static NOTED: [AtomicBool; MANY] = [const { AtomicBool::new(false) }; MANY];
    const MANY: usize = 8192;

    pub(crate) fn on(n: u64) -> bool {
        if let Some(file) = &*REACHED {
            if !NOTED[n as usize].swap(true, Ordering::Relaxed) {
                file.write_all_at(&[1], n).unwrap();
            }
            return false;
        }
        *CHOSEN == n
    }
}
'''


def generate(root, listed, leave):
    """Returns {name: text with all mutants} and the list of these, a number each from 1."""
    seen, mutants, of = collections.Counter(), [], collections.defaultdict(list)
    for mutant in listed:
        mutant['key'] = key_of(mutant, seen)
        if mutant['key'] not in leave:
            mutants.append(mutant)
            of[mutant['file']].append((len(mutants), mutant))
    texts, lost = {}, []
    for name, those in of.items():
        with open(os.path.join(root, name)) as f:
            file = File(f.read(), those)
        texts[name] = file.emit(file.tree.root_node)
        lost += file.lost
    for name in {re.match(r'crates/[^/]+', name)[0] + '/src/lib.rs' for name in of}:
        if name not in texts:
            with open(os.path.join(root, name)) as f:
                texts[name] = f.read()
        texts[name] += SWITCH
    return texts, mutants, lost


def blamed(texts, diagnostics):
    """The mutants that rustc's errors are about: each the last number before the place."""
    found, strange = set(), []
    for line in diagnostics:
        message = json.loads(line)
        if message.get('reason') != 'compiler-message' or message['message']['level'] != 'error':
            continue
        number = None
        for span in sorted(message['message']['spans'], key=lambda s: not s['is_primary']):
            text = texts.get(os.path.normpath(span['file_name']))
            if text is None:
                continue
            lines = text.split('\n')
            place = sum(len(each) + 1 for each in lines[:span['line_start'] - 1]) + span['column_start'] - 1
            marks = [m for m in MARK.finditer(text, max(0, place - 4000), place + 40) if m.start() <= place]
            if marks:
                number = int(marks[-1][1])
                break
        if number is None:
            strange.append(message['message']['rendered'])
        else:
            found.add(number)
    return found, strange
