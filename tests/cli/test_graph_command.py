"""Pipelines as pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from engine.cli.main import call
from engine.runs.diagram import draw, render


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
    assert render([], form, in_flight=1) == render([], form)


LINE = [
    Fake("collect", "serial", members=(Fake("collect.collector", "class", "Step.", NODES[0].members),)),
    Fake("learn", "serial", members=(Fake("learn.train", doc='Say "hi".'), Fake("learn.train#2"))),
]


def test_stations_head_their_members_in_text() -> None:
    assert render(LINE, "text", in_flight=2).splitlines() == [
        "station 1: collect (serial)",
        "└─ collector                 Step.",
        "   ├─ act",
        "   └─ step",
        "station 2: learn (serial)",
        '├─ train                     Say "hi".',
        "└─ train#2",
        "",
        "at most 2 iterations in flight: while learn works on iteration i, collect works on i+1",
    ]


def test_a_middleware_that_is_a_station_by_itself_needs_no_group() -> None:
    shown = render([*LINE[:1], NODES[1], NODES[2]], "text", in_flight=3).splitlines()
    assert [line.rstrip() for line in shown if line.startswith("station")] == [
        "station 1: collect (serial)",
        "station 2: group (repeat)",
        "station 3: log",
    ]


@pytest.mark.parametrize(
    ("in_flight", "sentence"),
    [
        (4, "4 iterations in flight: while d works on iteration i, c works on i+1, b on i+2 and a on i+3"),
        (2, "2 iterations in flight: iteration i+2 begins when iteration i has left the last station"),
        (1, "1 iteration in flight: the stations take turns"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_every_form_says_how_the_iterations_follow_each_other(
    form: str, in_flight: int, sentence: str
) -> None:
    shown = render([Fake(name) for name in "abcd"], form, in_flight=in_flight)
    assert f"at most {sentence}" in shown.replace(r":\n", ": ")


def test_mermaid_has_one_frame_for_each_station_and_arrows_between_them() -> None:
    lines = [line.strip() for line in render(LINE, "mermaid", in_flight=2).splitlines()]
    frames = [line for line in lines if line.startswith("subgraph station")]
    assert frames == [
        'subgraph station_1["station 1: collect"]',
        'subgraph station_2["station 2: learn"]',
    ]
    assert len([line for line in lines if line.startswith("subgraph")]) == lines.count("end") == 3
    assert "station_1 --> station_2" in lines
    assert "station_2 -. next iteration .-> station_1" in lines
    boxes = [re.match(r"(?:subgraph )?(\w+)\[", line) for line in lines]
    declared = [box[1] for box in boxes if box]
    assert len(declared) == len(set(declared))
    arrows = [re.fullmatch(r"(\w+) (?:-->|-\. .* \.->) (\w+)", line) for line in lines]
    assert {end for arrow in arrows if arrow for end in arrow.groups()} <= set(declared)


def test_dot_has_one_frame_for_each_station_and_arrows_between_frames_that_exist() -> None:
    text = render([*LINE, Fake("log")], "dot", in_flight=3)
    assert (
        text.count("{") == text.count("}") == 6
    )  # the graph, 3 stations, the collector, the row of the first
    frames = re.findall(r"subgraph cluster_(\w+) \{\s+label=\"(.*?)\"", text)
    assert frames == [
        ("station_1", "station 1: collect"),
        ("n_collect_collector", "collector"),
        ("station_2", "station 2: learn"),
        ("station_3", "station 3: log"),
    ]
    between = re.findall(
        r"(\w+)(?::n)? -> (\w+)(?::n)? \[ltail=cluster_(\w+), lhead=cluster_(\w+)(.*)\];", text
    )
    assert [arrow[2:4] for arrow in between] == [
        ("station_1", "station_2"),
        ("station_2", "station_3"),
        ("station_3", "station_1"),
    ]
    assert [("style=dashed" in arrow[4]) for arrow in between] == [False, False, True]
    declared = set(re.findall(r"^\s+(n_\w+) \[label=", text, re.M))
    assert {end for arrow in between for end in arrow[:2]} <= declared
    assert all(set(arrow) <= declared for arrow in re.findall(r"(\w+)(?::n)? -> (\w+)", text))


@dataclass
class Pipeline:
    async_mode: bool
    max_lag: int | None = None

    def graph(self) -> list[Fake]:
        return LINE


@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_a_task_is_drawn_as_it_runs(form: str) -> None:
    assert draw(Pipeline(async_mode=False), form) == render(LINE, form)
    assert draw(Pipeline(async_mode=True), form) == render(LINE, form, in_flight=2)
    assert draw(Pipeline(async_mode=True, max_lag=0), form) == render(LINE, form, in_flight=1)
    assert draw(Pipeline(async_mode=True, max_lag=7), form) == render(LINE, form, in_flight=2)


def test_the_command_draws_the_stations_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["graph", "ppo/cartpole", "async_mode=true"]) == 0
    overlapped = capsys.readouterr().out
    assert "station 1: collect (serial)" in overlapped
    assert "while learn works on iteration i, collect works on i+1" in overlapped
    assert call(["graph", "ppo/cartpole"]) == 0
    in_order = capsys.readouterr().out
    assert "station" not in in_order
    assert in_order.startswith("├─ collect (serial)")
