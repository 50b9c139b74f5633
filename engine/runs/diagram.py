"""A pipeline as text, Mermaid or DOT."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from engine.runs.stations import Line, at_most, most_in_flight

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


class Pipeline(Line, Protocol):
    """What `draw` needs of a task."""

    def graph(self) -> Sequence[Node]: ...


def draw(pipeline: Pipeline, form: str) -> str:
    """Write a task's pipeline as ``text``, ``mermaid`` or ``dot``; an overlapped one as its stations."""
    nodes = pipeline.graph()
    return render(nodes, form, in_flight=most_in_flight(pipeline, len(nodes)))


def render(nodes: Sequence[Node], form: str, *, in_flight: int | None = None) -> str:
    """Write nodes as ``text`` (an indented tree), ``mermaid`` or ``dot``.

    With `in_flight`, the iterations that are under way at most, each node is a station of its own.
    """
    if in_flight is None or not nodes:
        return {"text": _text, "mermaid": _mermaid, "dot": _dot}[form](nodes)
    staged = {"text": _text_stations, "mermaid": _mermaid_stations, "dot": _dot_stations}
    return staged[form](nodes, _pace([_short(node) for node in nodes], in_flight))


def _pace(names: Sequence[str], count: int) -> str:
    """How the iterations follow each other through the stations."""
    if count == 1:
        return f"{at_most(1)}: {'the stations take turns' if len(names) > 1 else 'there is one station'}"
    if count < len(names):
        return f"{at_most(count)}: iteration i+{count} begins when iteration i has left the last station"
    *earlier, last = names
    works = [
        f"{name} {'works ' if ahead == 1 else ''}on i+{ahead}"
        for ahead, name in enumerate(reversed(earlier), 1)
    ]
    return f"{at_most(count)}: while {last} works on iteration i, {_listed(works)}"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _short(node: Node) -> str:
    return node.name.rpartition(".")[2]


def _station(number: int, node: Node) -> str:
    return f"station {number}: {_short(node)}"


def _inside(node: Node) -> Sequence[Node]:
    """What stands in a station: the members of a serial group, or the one middleware that it is."""
    return node.members if node.kind == "serial" and node.members else [node]


def _label(node: Node) -> str:
    name = _short(node)
    return name if node.kind in ("function", "class") else f"{name} ({node.kind})"


def _text(nodes: Sequence[Node]) -> str:
    return _columns(_tree(nodes))


def _text_stations(nodes: Sequence[Node], pace: str) -> str:
    rows: list[tuple[str, str]] = []
    for number, node in enumerate(nodes, 1):
        kind = "" if node.kind in ("function", "class") else f" ({node.kind})"
        rows.append((f"{_station(number, node)}{kind}", node.doc))
        rows += _tree(node.members)
    return f"{_columns(rows)}\n\n{pace}"


def _tree(nodes: Sequence[Node], indent: str = "") -> list[tuple[str, str]]:
    """Rows of a tree: a label with its branch, and the node's doc."""
    rows: list[tuple[str, str]] = []
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        rows.append((f"{indent}{'└─ ' if last else '├─ '}{_label(node)}", node.doc))
        rows += _tree(node.members, indent + ("   " if last else "│  "))
    return rows


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(left) for left, _ in rows), default=0)
    return "\n".join(f"{left:<{width}}  {doc}".rstrip() for left, doc in rows)


def _mermaid(nodes: Sequence[Node]) -> str:
    lines = ["flowchart TD"]
    top = _mermaid_walk(nodes, "  ", lines)
    if len(top) > 1:
        lines.append(f"  {top[-1]} -. next iteration .-> {top[0]}")
    return "\n".join(lines)


def _mermaid_stations(nodes: Sequence[Node], pace: str) -> str:
    lines = ["flowchart LR"]
    for number, node in enumerate(nodes, 1):
        lines += [f'  subgraph station_{number}["{_station(number, node)}"]', "    direction TB"]
        _mermaid_walk(_inside(node), "    ", lines)
        lines.append("  end")
    numbers = range(1, len(nodes) + 1)
    lines += [f"  station_{a} --> station_{b}" for a, b in pairwise(numbers)]
    if len(nodes) > 1:
        lines.append(f"  station_{len(nodes)} -. next iteration .-> station_1")
    lines += [f'  pace["{pace}"]', "  style pace fill:none,stroke:none"]
    return "\n".join(lines)


def _mermaid_walk(nodes: Sequence[Node], indent: str, lines: list[str]) -> list[str]:
    """Append boxes, frames and the arrows between them; return the ids."""
    ids = []
    for node in nodes:
        ids.append(_id(node))
        if node.members:
            lines.append(f'{indent}subgraph {_id(node)}["{_label(node)}"]')
            _mermaid_walk(node.members, indent + "  ", lines)
            lines.append(f"{indent}end")
        else:
            lines.append(f'{indent}{_id(node)}["{_label(node)}"]')
    lines.extend(f"{indent}{a} --> {b}" for a, b in pairwise(ids))
    return ids


_DOT_HEAD = ["digraph pipeline {", "  rankdir=TB; compound=true; node [shape=box, style=rounded];"]


def _dot(nodes: Sequence[Node]) -> str:
    lines = [*_DOT_HEAD]
    top = _dot_walk(nodes, "  ", lines)
    if len(top) > 1:
        lines.append(
            f'  {top[-1][1]} -> {top[0][0]} [style=dashed, label="next iteration", constraint=false];'
        )
    return "\n".join([*lines, "}"])


def _dot_stations(nodes: Sequence[Node], pace: str) -> str:
    # newrank: boxes of several frames can stand at one height.
    lines = [*_DOT_HEAD, "  newrank=true; nodesep=0.7;"]
    ends = []
    for number, node in enumerate(nodes, 1):
        lines += [
            f"  subgraph cluster_station_{number} {{",
            f'    label="{_station(number, node)}"; style=rounded;',
        ]
        inner = _dot_walk(_inside(node), "    ", lines)
        lines.append("  }")
        ends.append((inner[0][0], inner[-1][1]))
    lines.append(f"  {{ rank=same; {'; '.join(first for first, _ in ends)}; }}")
    for number, (a, b) in enumerate(pairwise(ends), 1):
        lines.append(
            f"  {a[0]} -> {b[0]} [ltail=cluster_station_{number}, lhead=cluster_station_{number + 1}];"
        )
    if len(ends) > 1:
        lines.append(
            f"  {ends[-1][0]}:n -> {ends[0][0]}:n "
            f"[ltail=cluster_station_{len(ends)}, lhead=cluster_station_1, "
            'style=dashed, label="next iteration", constraint=false];'
        )
    head, _, tail = pace.partition(": ")
    return "\n".join([*lines, f'  label="{head}:\\n{tail}"; labelloc=b;', "}"])


def _dot_walk(nodes: Sequence[Node], indent: str, lines: list[str]) -> list[tuple[str, str]]:
    """Append boxes, frames and the arrows between them; return the first and last box of each node."""
    ends = []
    for node in nodes:
        if node.members:
            lines.append(f"{indent}subgraph cluster_{_id(node)} {{")
            lines.append(f'{indent}  label="{_label(node)}"; style=rounded;')
            inner = _dot_walk(node.members, indent + "  ", lines)
            lines.append(f"{indent}}}")
            ends.append((inner[0][0], inner[-1][1]))
        else:
            lines.append(f'{indent}{_id(node)} [label="{_label(node)}", tooltip="{_quoted(node.doc)}"];')
            ends.append((_id(node), _id(node)))
    lines.extend(f"{indent}{a[1]} -> {b[0]};" for a, b in pairwise(ends))
    return ends


def _id(node: Node) -> str:
    return "n_" + "".join(c if c.isalnum() else "_" for c in node.name)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
