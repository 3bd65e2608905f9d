"""`gcsim calibrate`: what is measured becomes an entry that a scenario can name."""

from __future__ import annotations

import typer

from gcsim.cli.calibrate.device import calibrate_device_command
from gcsim.cli.calibrate.link import calibrate_link_command

app = typer.Typer(
    name="calibrate", help="Fit a link or a device to measurements.", no_args_is_help=True
)
app.command(name="device")(calibrate_device_command)
app.command(name="link")(calibrate_link_command)
