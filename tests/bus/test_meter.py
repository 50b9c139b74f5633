"""What a process counts stands together, also when it is killed, and for others to read."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from engine.bus.meter import MOST_ROWS, Meter, Opened, Reading, Row, heard, key_of
from engine.bus.outbox import Outbox

pytestmark = pytest.mark.timeout(120)


def test_what_is_made_handed_over_pushed_and_taken_is_counted_where_it_happens() -> None:
    producer, consumer = Meter(), Meter()
    producer.name("collector_0:1")
    cell = producer.steps()
    cell[0] += 10
    producer.handed(10)
    cell[0] += 3
    outbox = Outbox(lambda who, item: None, meter=producer)
    outbox.push("first", 0.0, 4)
    outbox.push("second", 0.0, 5)
    read = producer.read()
    assert (read.stepped, read.mark, read.held, read.pushed) == (13, 10, 1, 9)
    assert (read.waiting, read.items) == (9, ((0, 4), (1, 5)))
    outbox.pump({"learner": 1})
    consumer.took("collector_0:1", 0, 4)
    consumer.used("collector_0:1", 4)
    outbox.taken("learner", 0)
    assert producer.read().items == ((1, 5),)
    assert consumer.read().rows == {read.key: Row(received=4, next=1, recent=1)}
    assert read.key == key_of("collector_0:1")


def test_a_full_outbox_counts_what_it_drops() -> None:
    meter = Meter()
    outbox = Outbox(lambda who, item: None, keep=2, meter=meter)
    meter.handed(6)
    for amount in (1, 2, 3):
        outbox.push(amount, 0.0, amount)
    read = meter.read()
    assert (read.held, read.pushed, read.dropped, read.items) == (0, 6, 1, ((1, 2), (2, 3)))


def test_items_count_as_taken_by_their_numbers_whatever_their_order() -> None:
    meter = Meter()
    for number in (0, 2, 1, 5):
        meter.took("x", number, 1)
    (row,) = meter.read().rows.values()
    assert [row.has(number) for number in range(7)] == [True, True, True, False, False, True, False]
    meter.took("x", 500, 1)
    (row,) = meter.read().rows.values()
    assert [row.has(number) for number in (499, 500, 501)] == [False, True, False]


def test_more_items_than_a_meter_lists_are_counted_all_the_same() -> None:
    meter = Meter()
    meter.handed(600)
    meter.moved([(number, 1) for number in range(600)], pushed=600)
    read = meter.read()
    assert (read.waiting, read.items, heard(read.made())) == (600, None, read)


def test_rows_beyond_those_there_is_room_for_disturb_nothing() -> None:
    meter = Meter()
    for number in range(MOST_ROWS + 2):
        meter.took(f"collector_{number}:x", 0, 7)
    rows = meter.read().rows
    assert len(rows) == MOST_ROWS
    assert {row.unused for row in rows.values()} == {7}


def test_a_meter_is_told_in_plain_values() -> None:
    meter = Meter()
    meter.name("x")
    meter.handed(3)
    meter.moved([(0, 2)], pushed=2)
    assert heard(meter.read().made()) == meter.read()
    for nonsense in (None, 7, {"key": "x"}, {"items": [[1]]}, []):
        assert heard(nonsense) is None


WRITER = """
import sys
from engine.bus.meter import Meter
meter = Meter(shared=True)
print(meter.offer[0], meter.offer[1], flush=True)
cell, number = meter.steps(), 0
while True:
    cell[0] += 8
    meter.handed(8)
    meter.moved([(number, 8)], pushed=8)
    meter.took("x", number, 8)
    meter.used("x", 8)
    meter.moved([])
    number += 1
"""


def test_a_process_that_is_killed_leaves_counts_that_belong_together() -> None:
    dice = random.Random(0)
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            fd, nonce = process.stdout.readline().split()
            opened = Opened(process.pid, [int(fd), nonce])
            while (opened.read().stepped or 0) < dice.randrange(10_000, 60_000):
                pass
            process.send_signal(signal.SIGKILL)
        read = opened.read()
        assert read.stepped is not None
        assert read.stepped - read.mark in (0, 8)
        assert read.mark == read.held + read.pushed
        (row,) = read.rows.values()
        waiting = sum(amount for number, amount in read.items or () if not row.has(number))
        assert read.pushed == row.received + row.unused + waiting


def test_a_meter_holds_one_descriptor_and_a_reader_none() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:engine-meter")

    gc.collect()
    before, maps = len(os.listdir("/proc/self/fd")), mapped()
    meter = Meter(shared=True)
    assert meter.offer is not None
    opened = Opened(os.getpid(), meter.offer)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    meter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    cell = meter.steps()
    cell[0] += 3
    assert opened.read().stepped == 3, "what was opened stays"
    assert mapped() == maps + 2
    del meter, cell, opened
    gc.collect()
    assert mapped() == maps


def test_what_is_no_meter_is_not_believed(tmp_path: object) -> None:
    with closing(Meter(shared=True)) as meter:
        assert meter.offer is not None
        fd, nonce = meter.offer
        assert Opened(os.getpid(), [fd, nonce]).read() == meter.read() == Reading()
        with pytest.raises(LookupError, match="another process"):
            Opened(os.getpid(), [fd, "0" * 16])
        reader, writer = os.pipe()
        for offer in ([reader, nonce], [10_000, nonce], [fd], None, ["0", nonce]):
            with pytest.raises(LookupError):
                Opened(os.getpid(), offer)
        os.close(reader)
        os.close(writer)
    assert meter.offer is None
