"""`engine worker`: join a running program in one of its roles."""

from __future__ import annotations

from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  engine worker --attach latest --role collector
  engine worker --attach tcp://10.0.0.7:41233 --role collector --key-file run.key
  engine worker --attach tcp://10.0.0.7:41233 --role collector --key-file run.key --listen 10.0.0.9:41300

\b
It gets the program and its configuration from the launcher, works until the run is over,
and leaves in order on Ctrl-C or SIGTERM. `engine launch --tcp HOST` prints the line to
type on another machine, which needs a copy of the key file in the run's folder."""


@click.command(epilog=EXAMPLES)
@click.option(
    "--attach",
    "where",
    required=True,
    metavar="tcp://HOST:PORT|RUN",
    help="A run of this machine, or where one elsewhere is.",
)
@click.option("--role", required=True, help="The role to work in.")
@click.option(
    "--key-file", type=click.Path(path_type=Path), help="The keys of the run, for tcp://... (mode 0600)."
)
@click.option(
    "--listen",
    metavar="HOST[:PORT]",
    help="Where the run's processes reach this one, for tcp://...; found out by default. Behind a gateway "
    "that passes a port on: the gateway's address and that port.",
)
def worker(where: str, role: str, key_file: Path | None, listen: str | None) -> int:
    """Join a running program in one of its roles."""
    from engine.launch.attach import find, work_for

    def joined(name: str) -> None:
        click.echo(f"joined as {name}; Ctrl-C leaves", err=True)

    return work_for(find(where, key_file, listen), role, joined=joined)
