"""A worker whose connections break again and again: ``cut_off.py ROLE SECONDS TIMES``, in folder run."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bus"))

from proxy import Proxy

from engine.bus.zeromq import ZeroMQ
from engine.launch.attach import find
from engine.launch.backend import Order
from engine.launch.card import read_card
from engine.launch.worker import Stopping, attend
from engine.runs.folder import Run


class CutOff(ZeroMQ):
    """Every connection, to it and from it, goes through a proxy."""

    proxies: list[Proxy]

    def start(self, me: str) -> str:
        """Tell others the address of a proxy."""
        self.proxies = []
        return self._through(super().start(me))

    def connect(self, peer: str, address: str, *, answered: bool = False) -> None:
        """Connect to others through a proxy."""
        super().connect(peer, self._through(address), answered=answered)

    def _through(self, address: str) -> str:
        proxy = Proxy(address)
        self.proxies.append(proxy)
        return proxy.address


def main() -> None:
    """Work, with connections that break so often."""
    role, seconds, times = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    card = read_card(Run.open("run"))
    assert card is not None
    assert card.address is not None
    address = next(part for part in card.address.split() if part.startswith("tcp://"))
    place = find(address.partition("#")[0], Path("run/run.key"))
    transport = CutOff(ipc=False, tcp="127.0.0.1", keys=place.keys)

    def cut() -> None:
        for _ in range(times):
            time.sleep(seconds)
            for proxy in list(transport.proxies):
                proxy.reset()
        print(f"cut off {sum(proxy.resets for proxy in transport.proxies)} times", flush=True)

    def joined(name: str) -> None:
        print(f"joined as {name}", file=sys.stderr, flush=True)
        threading.Thread(target=cut, daemon=True).start()

    stopping = Stopping()
    order = Order(run=place.run, address=place.address, role=role)
    with stopping.signals():
        code = attend(order, transport, stopping=stopping, joined=joined)
    for proxy in transport.proxies:
        proxy.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
