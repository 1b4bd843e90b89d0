# SPDX-License-Identifier: MIT OR Apache-2.0
"""rewritten.py - a file as it is, but for the nodes that a language's mutants change."""


class Rewritten:
    """What derives from it has source, bytes, and emit_TYPE(node) for what it changes."""

    def text(self, node):
        return self.source[node.start_byte:node.end_byte].decode()

    def emit(self, node):
        handler = getattr(self, 'emit_' + node.type, None)
        return handler(node) if handler else self.inside(node)

    def inside(self, node, replaced=None):
        """The node's text, each child emitted; replaced: {child id: text}."""
        if not node.children:
            return self.text(node)
        out, at = [], node.start_byte
        for child in node.children:
            out.append(self.source[at:child.start_byte].decode())
            given = (replaced or {}).get(child.id)
            out.append(self.emit(child) if given is None else given)
            at = child.end_byte
        out.append(self.source[at:node.end_byte].decode())
        return ''.join(out)
