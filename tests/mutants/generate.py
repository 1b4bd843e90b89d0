#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""generate.py FILE... - counts the single changes that it would make of C files.

generate() gives a copy of each file in which every mutant stands behind a number,
FBY_M(n).  mutant.h and mutant.c say which number is on: so one build holds them
all, and the environment variable FBY_MUTANT=n chooses one when the program starts.

A mutant is known by its key: file, function, operator, the text changed and
what becomes of it; where a function has the same twice, a count follows.  Keys
hold no line numbers, so that what was judged stays judged while the code moves.

The files are parsed as they are written, by tree-sitter, and not as the
preprocessor leaves them: fby_store(...) is a call here and not a builtin, and
what a macro became is nothing that anyone would edit by mistake.

Operators:
  del     a statement is left out: a call, an assignment, break, continue, goto
  skip    a function without a result does nothing
  true, false   a condition, or what a function of type bool returns
  ret0    another function returns 0
  drop    one side of && or || is left out
  cmp     < for <= and so on; == for != where it is no condition by itself
  arith   + for -, * for +, / for *, << for >>, & for |
  const   a number one higher, one lower; true for false
  order   a release store or acquire load becomes a relaxed one
  swap    two statements next to each other, both of them effects that another
          thread or the media sees, in the other order
Left alone: assertions, hints to processor and scheduler, planted bugs, and whatever has to
be a constant at compile time.
"""
import collections
import os
import re
import sys

import tree_sitter
import tree_sitter_c

from keys import short
from rewritten import Rewritten

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language()))

# Words that tree-sitter takes for names of types or functions; blanked for it.
BLANK = re.compile(
    rb'\b(FBY_INLINE|FBY_ALIGNED|fby_uninitialized|TARGET|__init|__exit|__always_inline|__uninitialized|__user)\b'
    rb'|__attribute__\(\((?:[^()]|\([^()]*\))*\)\)')
# The kernel's loops over lists, which look like calls.
LOOPS = re.compile(rb'\blist_for_each_entry\w*')
# Code that only a build with planted bugs compiles is skipped.
PLANTED = re.compile(rb'^#ifdef FBY_PLANTED_BUGS\n(?:.*?)(?:^#else\n(.*?))?^#endif[^\n]*\n', re.M | re.S)

# Never changed, nor is anything inside.
LEAVE = {'preproc_def', 'preproc_function_def', 'preproc_include', 'preproc_call', 'enum_specifier',
         'struct_specifier', 'sizeof_expression', 'alignof_expression', 'offsetof_expression',
         'static_assert_declaration', 'gnu_asm_expression', 'type_descriptor', 'subscript_designator',
         'comment', 'array_declarator'}
CALLS_LEFT = {'FBY_ASSERT', 'FBY_STATIC_ASSERT', 'FBY_BUG', 'fby_prefetch', 'fby_prefetchw', 'fby_relax',
              'begin_prefetch', 'page_prefetch', 'media_prefetch', 'LIST_HEAD', 'cond_resched', 'cpu_relax',
              'mutex_destroy', 'va_start', 'va_end'}
# Calls whose order another thread or the media can see.
EFFECT = re.compile(r'(fby_(store|fetch|lock|unlock|index|slot|record|owner|fence|chunk|page|wmb)\w*|media_\w+|fby_wmb|store_\w+'
                    r'|publish\w*|fby_bypass\w*|fby_flush\w*|fby_gate\w*)$')
WEAKER = {'fby_store_release': 'fby_store', 'fby_load_acquire': 'fby_load'}
COMPARE = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '=='}
ARITH = {'+': '-', '-': '+', '*': '+', '/': '*', '%': '+', '<<': '>>', '>>': '<<', '&': '|', '|': '&', '^': '|'}
ASSIGN = {'+=': '-=', '-=': '+=', '|=': '&=', '&=': '|=', '<<=': '>>=', '>>=': '<<='}


class File(Rewritten):
    """One file: its mutants, and its text with all of them."""

    def __init__(self, name, source, mutants, leave):
        self.name = name
        self.source = source
        self.mutants = mutants  # of all files; a number is the position in the list, from 1
        self.leave = leave  # keys that do not compile
        self.seen = collections.Counter()
        self.function = None
        self.bool_result = self.void_result = self.plain_result = False
        plain = BLANK.sub(lambda m: b' ' * len(m[0]), source)
        self.tree = PARSER.parse(LOOPS.sub(lambda m: b'while'.ljust(len(m[0])), plain))

    def mutant(self, node, operator, before, after=''):
        """The number of a new mutant; 0 for one that is left out."""
        key = f'{self.name} {self.function}: {operator} `{short(before)}`'
        if after:
            key += f' -> `{short(after)}`'
        self.seen[key] += 1
        if self.seen[key] > 1:
            key += f' #{self.seen[key]}'
        if key in self.leave:
            return 0
        self.mutants.append({'key': key, 'file': self.name, 'function': self.function, 'operator': operator,
                             'line': node.start_point[0] + 1})
        return len(self.mutants)

    # --- text with mutants ------------------------------------------------

    def planted(self, node):
        """A condition of planted bugs alone, or that only they get to."""
        return re.match(r'\(*!?FBY_BUG\(\w+\)\)*(\s*&&|$)', self.text(node)) is not None

    def emit(self, node):
        if node.type in LEAVE or (node.type == 'declaration' and self.constant(node)):
            return self.text(node)
        if node.type == 'call_expression' and self.callee(node) in CALLS_LEFT:
            return self.text(node)
        if node.type == 'function_definition':
            return self.emit_function(node)
        if self.function is None and not node.type.startswith(('translation_unit', 'preproc_', 'linkage')):
            return self.text(node)
        return super().emit(node)

    def constant(self, node):
        """Has the declaration to be known at compile time?"""
        return self.function is None or any(
            c.type == 'storage_class_specifier' and self.text(c) in ('static', 'extern') for c in node.children)

    def callee(self, node):
        function = node.child_by_field_name('function')
        return self.text(function) if function is not None else ''

    def emit_function(self, node):
        declarator = node.child_by_field_name('declarator')
        pointer = False
        while declarator is not None and declarator.type != 'identifier':
            pointer |= declarator.type == 'pointer_declarator'
            declarator = declarator.child_by_field_name('declarator')
        if declarator is None:
            return self.text(node)
        result = node.child_by_field_name('type')
        result = self.text(result) if result is not None else ''
        self.function = self.text(declarator)
        self.void_result = result == 'void' and not pointer
        self.bool_result = result == 'bool'
        self.plain_result = pointer or not result.startswith('struct')
        body = node.child_by_field_name('body')
        text = self.inside(body)
        if self.void_result and any(c.is_named and c.type != 'comment' for c in body.children):
            n = self.mutant(body, 'skip', 'whole function')
            if n:
                text = text.replace('{', f'{{ if (FBY_M({n})) return;', 1)
        self.function = None
        return self.source[node.start_byte:body.start_byte].decode() + text

    def emit_preproc_if(self, node):
        condition = node.child_by_field_name('condition')
        return self.inside(node, {condition.id: self.text(condition)})

    emit_preproc_elif = emit_preproc_if

    # --- statements -------------------------------------------------------

    def emit_compound_statement(self, node):
        """Statements, those next to each other perhaps swapped."""
        children = node.children
        swaps = {}
        for a, b in zip(children, children[1:]):
            if self.effect(a) and self.effect(b):
                n = self.mutant(a, 'swap', self.text(a), self.text(b))
                if n:
                    swaps[b.id] = (n, a)
        texts = {c.id: self.emit(c) for c in children}
        for at, child in enumerate(children):
            after = children[at + 1] if at + 1 < len(children) else None
            if child.id in swaps:
                texts[child.id] = f'if (!FBY_M({swaps[child.id][0]})) {{ {texts[child.id]} }}'
            if after is not None and after.id in swaps:
                texts[child.id] = f'if (FBY_M({swaps[after.id][0]})) {{ {texts[after.id]} }} {texts[child.id]}'
        return self.inside(node, texts)

    def effect(self, node):
        if node.type != 'expression_statement' or not node.named_children:
            return False
        call = node.named_children[0]
        return call.type == 'call_expression' and bool(EFFECT.match(self.callee(call)))

    def emit_expression_statement(self, node):
        expression = node.named_children[0] if node.named_children else None
        if expression is None or (expression.type == 'call_expression' and self.callee(expression) in CALLS_LEFT):
            return self.text(node)
        if expression.type == 'cast_expression' and self.text(expression).startswith('(void)'):
            return self.text(node)
        if self.text(expression) == 'fallthrough':
            return self.text(node)
        n = self.mutant(node, 'del', self.text(node))
        text = self.inside(node)
        return f'{{ if (!FBY_M({n})) {{ {text} }} }}' if n else text

    def emit_break_statement(self, node):
        inside = node.parent
        while inside.type not in ('switch_statement', 'for_statement', 'while_statement', 'do_statement'):
            inside = inside.parent
        n = self.mutant(node, 'del', 'break in ' + inside.type)
        return f'{{ if (!FBY_M({n})) {self.text(node)} }}' if n else self.text(node)

    def emit_continue_statement(self, node):
        n = self.mutant(node, 'del', self.text(node))
        return f'{{ if (!FBY_M({n})) {self.text(node)} }}' if n else self.text(node)

    emit_goto_statement = emit_continue_statement

    def emit_return_statement(self, node):
        value = node.named_children[0] if node.named_children else None
        if value is None:
            n = self.mutant(node, 'del', 'return;')
            return f'{{ if (!FBY_M({n})) return; }}' if n else self.text(node)
        text = self.emit(value)
        if self.bool_result and value.type not in ('true', 'false'):
            text = self.forced(value, text)
        elif self.plain_result and not self.bool_result and value.type != 'number_literal' and (
                self.text(value) not in ('FBY_DONE', 'NULL')):  # which are 0
            n = self.mutant(node, 'ret0', self.text(node))
            text = f'(FBY_M({n}) ? 0 : ({text}))' if n else text
        return f'return {text};'

    def forced(self, node, text):
        yes = self.mutant(node, 'true', self.text(node))
        no = self.mutant(node, 'false', self.text(node))
        text = f'(!FBY_M({no}) && ({text}))' if no else f'({text})'
        return f'(FBY_M({yes}) || {text})' if yes else text

    def emit_if_statement(self, node):
        return self.with_condition(node)

    def with_condition(self, node):
        condition = node.child_by_field_name('condition')
        bare = condition
        while bare.type == 'parenthesized_expression' and len(bare.named_children) == 1:
            bare = bare.named_children[0]
        if bare.type == 'call_expression' and self.callee(bare) in CALLS_LEFT:
            return self.inside(node)
        if self.planted(bare):
            kept = {condition.id: self.text(condition)}
            only = node.child_by_field_name('consequence')
            if re.match(r'\(*FBY_BUG', self.text(bare)) and only is not None:
                kept[only.id] = self.text(only)
            return self.inside(node, kept)
        if bare.type == 'assignment_expression' or bare.type in ('true', 'false', 'number_literal'):
            return self.inside(node)
        text = '(' + self.forced(bare, self.emit(bare)) + ')'
        return self.inside(node, {condition.id: text})

    emit_conditional_expression = with_condition

    def emit_while_statement(self, node):
        return self.loop(node)

    def emit_for_statement(self, node):
        return self.loop(node)

    def loop(self, node):
        """A loop may not begin; one that never ends would only be found."""
        condition = node.child_by_field_name('condition')
        update = node.child_by_field_name('update')
        if LOOPS.match(self.source, node.start_byte):
            n = self.mutant(condition, 'false', 'loop ' + self.text(condition))
            text = self.inside(node, {condition.id: self.text(condition)})
            return f'{{ if (!FBY_M({n})) {text} }}' if n else text
        replaced = {update.id: self.text(update)} if update is not None else {}
        if condition is not None and condition.type not in ('true', 'number_literal'):
            text = self.emit(condition)
            n = self.mutant(condition, 'false', 'loop ' + self.text(condition))
            if n:
                text = f'(!FBY_M({n}) && ({text}))'
            replaced[condition.id] = text
        return self.inside(node, replaced)

    def emit_case_statement(self, node):
        value = node.child_by_field_name('value')
        return self.inside(node, {value.id: self.text(value)} if value is not None else {})

    # --- expressions ------------------------------------------------------

    def emit_binary_expression(self, node):
        left, right = node.child_by_field_name('left'), node.child_by_field_name('right')
        operator = self.text(node.child_by_field_name('operator'))
        if (operator, self.text(left).split('(')[0]) in (('&&', 'FBY_BUG'), ('||', '!FBY_BUG')):
            return self.text(node)  # only in builds with planted bugs
        a, b = self.emit(left), self.emit(right)
        whole = self.text(node)
        if operator in ('&&', '||'):
            both = []
            for side, text in ((left, a), (right, b)):
                inner = side.named_children[0] if side.type in ('unary_expression',) else side
                fixed = (inner.type == 'call_expression' and self.callee(inner) in CALLS_LEFT) or re.match(
                    r'[(!]*FBY_BUG\(', self.text(side))
                n = 0 if fixed else self.mutant(side, 'drop', self.text(side), f'{operator} of {short(whole)}')
                if n:
                    text = f'(FBY_M({n}) || ({text}))' if operator == '&&' else f'(!FBY_M({n}) && ({text}))'
                both.append(text)
            return f'({both[0]} {operator} {both[1]})'
        if operator in COMPARE:
            if operator in ('==', '!=') and self.is_condition(node):
                return f'{a} {operator} {b}'
            other = COMPARE[operator]
            n = self.mutant(node, 'cmp', whole, other)
            return f'(FBY_M({n}) ? ({a} {other} {b}) : ({a} {operator} {b}))' if n else f'{a} {operator} {b}'
        other = ARITH.get(operator)
        n = self.mutant(node, 'arith', whole, other) if other else 0
        if n and operator in '+-':
            return f'({a} {operator} (FBY_M({n}) ? -({b}) : ({b})))'
        return f'(FBY_M({n}) ? ({a} {other} {b}) : ({a} {operator} {b}))' if n else f'{a} {operator} {b}'

    def is_condition(self, node):
        """Is it forced to true and false by what is around it?"""
        above = node.parent
        while above.type == 'parenthesized_expression' or (
                above.type == 'unary_expression' and self.text(above).startswith('!')):
            node, above = above, above.parent
        if above.type == 'binary_expression':
            return self.text(above.child_by_field_name('operator')) in ('&&', '||')
        if above.type in ('if_statement', 'conditional_expression'):
            condition = above.child_by_field_name('condition')
            return condition.id == node.id
        return above.type == 'return_statement' and self.bool_result

    def emit_assignment_expression(self, node):
        operator = self.text(node.child_by_field_name('operator'))
        left, right = node.child_by_field_name('left'), node.child_by_field_name('right')
        a, b = self.emit(left), self.emit(right)
        other = ASSIGN.get(operator)
        n = self.mutant(node, 'arith', self.text(node), other) if other else 0
        if n and operator in ('+=', '-='):
            return f'{a} {operator} (FBY_M({n}) ? -({b}) : ({b}))'
        return f'(FBY_M({n}) ? ({a} {other} {b}) : ({a} {operator} {b}))' if n else f'{a} {operator} {b}'

    def emit_call_expression(self, node):
        callee = self.callee(node)
        function = node.child_by_field_name('function')
        kept = {function.id: self.text(function)}
        if callee.startswith('_mm'):  # a number among its arguments may have to be constant
            kept |= {a.id: self.text(a) for a in node.child_by_field_name('arguments').named_children
                     if a.type == 'number_literal'}
        text = self.inside(node, kept) if len(kept) == 1 else (
            kept[function.id] + self.inside(node.child_by_field_name('arguments'), kept))
        if callee in WEAKER:
            n = self.mutant(node, 'order', self.text(node), WEAKER[callee])
            if n:
                weak = WEAKER[callee] + text[len(callee):]
                chosen = f'(FBY_M({n}) ? ({weak}) : ({text}))'
                stores = 'store' in callee
                return f'({{ if (FBY_M({n})) {weak}; else {text}; }})' if stores else chosen
        return text

    def emit_number_literal(self, node):
        literal = self.text(node)
        found = re.fullmatch(r'(0[xX][0-9a-fA-F]+|[0-9]+)([uUlL]*)', literal)
        if not found:
            return literal
        value, suffix = int(found[1], 0), found[2]
        more = self.mutant(node, 'const', self.around(node), f'{literal} + 1')
        less = self.mutant(node, 'const', self.around(node), f'{literal} - 1') if value else 0
        text = literal
        if less:
            text = f'(FBY_M({less}) ? {value - 1}{suffix} : {text})'
        if more:
            text = f'(FBY_M({more}) ? {value + 1}{suffix} : {text})'
        return text

    def emit_true(self, node):
        literal = self.text(node)
        other = 'false' if literal == 'true' else 'true'
        n = self.mutant(node, 'const', self.around(node), other)
        return f'(FBY_M({n}) ? {other} : {literal})' if n else literal

    emit_false = emit_true

    def around(self, node):
        """What tells a reader which number it is: the expression that holds it."""
        above = node.parent
        while above.type in ('parenthesized_expression', 'unary_expression', 'argument_list') or (
                above.parent is not None and len(self.text(above)) < 12 and above.parent.type.endswith('expression')):
            above = above.parent
        return self.text(above)


def generate(root, names, leave):
    """Returns {name: text with all mutants} and the list of these; leave: keys to pass over."""
    mutants, texts = [], {}
    for name in names:
        with open(os.path.join(root, name), 'rb') as f:
            source = PLANTED.sub(lambda m: m[1] or b'', f.read())
        file = File(name, source, mutants, leave)
        tree = file.tree.root_node
        text = source[:tree.start_byte].decode() + file.emit(tree)
        texts[name] = f'#include "mutant.h"\n#line 1\n{text}\n'.encode()
    return texts, mutants


if __name__ == '__main__':
    made = generate('.', sys.argv[1:], set())[1]
    print(f'{len(made)} mutants')
    for operator, n in collections.Counter(m['operator'] for m in made).most_common():
        print(f'{n:6} {operator}')
