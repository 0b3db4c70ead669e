"""Clients that still connect without encryption, for brokers with ``plaintext: Keep``: each broker logs their addresses.

Kafka's audit log has every request, and no metric of Kafka has an address. So the start script reads the connections of the pod.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from firn.model.errors import UnavailableError
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.fleet.kafka.layout import KafkaFleet, Stage
from firn_controllers.fleet.layout import EXTERNAL_PORT

INTERVAL = 60.0
"""Seconds between two reads of the brokers' logs."""
WINDOW = 180
"""Seconds of a log that the operator reads. A broker repeats the line of a connected client about once a minute."""
MEMORY = 600.0
"""Seconds for which a client counts after its last line."""
NAMED = 10
"""Number of clients that a message names."""
PREFIX = "Connection without encryption: address "
ALIVE = "The broker looks for connections without encryption."
"""A line that the broker repeats about once a minute. Without it, the absence of clients proves nothing."""
_LOOK_SECONDS, _REPEAT_LOOKS = 2, 30
_SCRIPT = r"""
# Logs each client that is connected without encryption, about once a minute. Connections of less than two seconds may have no line.
awk -v broker=$$ '
function hex(text,  number, i) {
  for (i = 1; i <= length(text); i++) number = number * 16 + index("0123456789ABCDEF", substr(text, i, 1)) - 1
  return number
}
function four(text) {
  return hex(substr(text, 7, 2)) "." hex(substr(text, 5, 2)) "." hex(substr(text, 3, 2)) "." hex(substr(text, 1, 2))
}
function pair(text) { return tolower(substr(text, 7, 2) substr(text, 5, 2) ":" substr(text, 3, 2) substr(text, 1, 2)) }
function address(text) {
  if (length(text) == 8) return four(text)
  if (substr(text, 1, 24) == "0000000000000000FFFF0000") return four(substr(text, 25))
  return pair(substr(text, 1, 8)) ":" pair(substr(text, 9, 8)) ":" pair(substr(text, 17, 8)) ":" pair(substr(text, 25, 8))
}
function look(file,  line, field, here, there) {
  while ((getline line < file) > 0) {
    split(line, field, " "); split(field[2], here, ":"); split(field[3], there, ":")
    if (field[4] == "01" && here[2] in port) now[address(there[1]) ", port " port[here[2]]] = 1
  }
  close(file)
}
BEGIN {
@ports@
  while (system("sleep @seconds@; kill -0 " broker " 2>/dev/null") == 0) {
    if (looks++ % @repeat@ == 0) { print "@alive@"; fflush() }
    look("/proc/net/tcp"); look("/proc/net/tcp6")
    for (client in now) {
      if (!(client in logged) || looks - logged[client] >= @repeat@) {
        print "@prefix@" client; fflush(); logged[client] = looks
      }
      delete now[client]
    }
    for (client in logged) if (looks - logged[client] > 2 * @repeat@) delete logged[client]
  }
}' &
"""


def are_reported(fleet: KafkaFleet) -> bool:
    """Return whether the brokers log clients without encryption. In earlier stages, brokers may connect to each other so."""
    return fleet.profile.access is not None and fleet.stage is Stage.CLOSED and fleet.open


def script(fleet: KafkaFleet) -> str:
    """Return the part of the start script that logs clients without encryption; empty unless `are_reported`."""
    if not are_reported(fleet):
        return ""
    ports = [CLIENT_PORT, *([EXTERNAL_PORT] if fleet.profile.external is not None else [])]
    found = _SCRIPT.lstrip("\n")
    for place, text in {
        "ports": "\n".join(f'  port["{port:04X}"] = {port}' for port in ports),
        "prefix": PREFIX,
        "alive": ALIVE,
        "seconds": str(_LOOK_SECONDS),
        "repeat": str(_REPEAT_LOOKS),
    }.items():
        found = found.replace(f"@{place}@", text)
    return found


def clients(log: str) -> set[str]:
    """Return the clients that a broker's log names, as ``ADDRESS, port PORT``.

    Raises UnavailableError if the broker does not look for them.
    """
    lines = log.splitlines()
    if ALIVE not in lines:
        raise UnavailableError("a broker does not look for them; see whether its image has awk, and its log")
    return {line.removeprefix(PREFIX).strip() for line in lines if line.startswith(PREFIX)}


@dataclass(slots=True)
class Sightings:
    """The clients without encryption of a profile, and the monotonic time of the last line of each."""

    started: float
    """Monotonic time of the first read."""
    last: dict[str, float] = field(default_factory=dict)

    def add(self, found: Iterable[str], now: float) -> list[str]:
        """Add clients, and forget those without a line for `MEMORY`. Returns the new ones, sorted."""
        new = sorted(set(found) - self.last.keys())
        self.last |= dict.fromkeys(found, now)
        self.last = {client: at for client, at in self.last.items() if now - at < MEMORY}
        return new


def message(profile: str, found: Iterable[str]) -> str:
    """Return the text of the Event for clients without encryption."""
    named = sorted(found)
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return (
        f"profile {profile}: {len(named)} client(s) connect without encryption: {'; '.join(named[:NAMED])}{rest}; move them to port 9096 before"
        " you set access.plaintext to Close"
    )
