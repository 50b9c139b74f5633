"""Pipelines as pictures."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.runs.diagram import render


@dataclass
class Fake:
    name: str
    kind: str = "function"
    doc: str = ""
    members: tuple[Fake, ...] = ()


NODES = [
    Fake("collector", "class", "Collect.", (Fake("collector.act"), Fake("collector.step"))),
    Fake("group", "repeat", members=(Fake("group.train", doc='Say "hi".'),)),
    Fake("log"),
]


def test_text_is_a_tree() -> None:
    assert render(NODES, "text").splitlines() == [
        "├─ collector       Collect.",
        "│  ├─ act",
        "│  └─ step",
        "├─ group (repeat)",
        '│  └─ train        Say "hi".',
        "└─ log",
    ]


def test_mermaid_has_a_box_or_frame_for_each_and_arrows_in_order() -> None:
    lines = [line.strip() for line in render(NODES, "mermaid").splitlines()]
    assert lines[0] == "flowchart TD"
    assert 'subgraph n_collector["collector"]' in lines
    assert 'n_group_train["train"]' in lines
    assert lines.count("end") == 2
    assert [line for line in lines if "-->" in line] == [
        "n_collector_act --> n_collector_step",
        "n_collector --> n_group",
        "n_group --> n_log",
    ]
    assert lines[-1] == "n_log -. next iteration .-> n_collector"


def test_dot_is_balanced_and_quotes_what_it_shows() -> None:
    text = render(NODES, "dot")
    assert text.count("{") == text.count("}") == 3
    assert r'tooltip="Say \"hi\"."' in text
    assert "n_collector_step -> n_group_train;" in text


@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_an_empty_pipeline_is_drawn(form: str) -> None:
    assert isinstance(render([], form), str)
