"""A pipeline as text, Mermaid or DOT."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

FORMATS = ("text", "mermaid", "dot")


class Node(Protocol):
    """What `Task.graph` gives of each middleware."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def doc(self) -> str: ...

    @property
    def members(self) -> Sequence[Node]: ...


def render(nodes: Sequence[Node], form: str) -> str:
    """Write nodes as ``text`` (an indented tree), ``mermaid`` or ``dot``."""
    return {"text": _text, "mermaid": _mermaid, "dot": _dot}[form](nodes)


def _label(node: Node) -> str:
    name = node.name.rpartition(".")[2]
    return name if node.kind in ("function", "class") else f"{name} ({node.kind})"


def _text(nodes: Sequence[Node]) -> str:
    rows: list[tuple[str, str]] = []

    def walk(nodes: Sequence[Node], indent: str) -> None:
        for index, node in enumerate(nodes):
            last = index == len(nodes) - 1
            rows.append((f"{indent}{'└─ ' if last else '├─ '}{_label(node)}", node.doc))
            walk(node.members, indent + ("   " if last else "│  "))

    walk(nodes, "")
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"{left:<{width}}  {doc}".rstrip() for left, doc in rows)


def _mermaid(nodes: Sequence[Node]) -> str:
    lines = ["flowchart TD"]

    def walk(nodes: Sequence[Node], indent: str) -> list[str]:
        ids = []
        for node in nodes:
            ids.append(_id(node))
            if node.members:
                lines.append(f'{indent}subgraph {_id(node)}["{_label(node)}"]')
                walk(node.members, indent + "  ")
                lines.append(f"{indent}end")
            else:
                lines.append(f'{indent}{_id(node)}["{_label(node)}"]')
        lines.extend(f"{indent}{a} --> {b}" for a, b in pairwise(ids))
        return ids

    top = walk(nodes, "  ")
    if len(top) > 1:
        lines.append(f"  {top[-1]} -. next iteration .-> {top[0]}")
    return "\n".join(lines)


def _dot(nodes: Sequence[Node]) -> str:
    lines = ["digraph pipeline {", "  rankdir=TB; compound=true; node [shape=box, style=rounded];"]

    def walk(nodes: Sequence[Node], indent: str) -> list[tuple[str, str]]:
        ends = []
        for node in nodes:
            if node.members:
                lines.append(f"{indent}subgraph cluster_{_id(node)} {{")
                lines.append(f'{indent}  label="{_label(node)}"; style=rounded;')
                inner = walk(node.members, indent + "  ")
                lines.append(f"{indent}}}")
                ends.append((inner[0][0], inner[-1][1]))
            else:
                lines.append(f'{indent}{_id(node)} [label="{_label(node)}", tooltip="{_quoted(node.doc)}"];')
                ends.append((_id(node), _id(node)))
        lines.extend(f"{indent}{a[1]} -> {b[0]};" for a, b in pairwise(ends))
        return ends

    top = walk(nodes, "  ")
    if len(top) > 1:
        lines.append(
            f'  {top[-1][1]} -> {top[0][0]} [style=dashed, label="next iteration", constraint=false];'
        )
    return "\n".join([*lines, "}"])


def _id(node: Node) -> str:
    return "n_" + "".join(c if c.isalnum() else "_" for c in node.name)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
