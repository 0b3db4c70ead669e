"""The process that rebuilds batches from data files.

Standard input has frames of `firn_broker.history.rebuilding.workers`, standard output the answers."""

import asyncio
import json

from firn.model.errors import CorruptDataError, FirnError
from firn_broker.cluster.process_setup import log_as_json
from firn_broker.history.files import TableFiles
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.rebuilding.workers import DAMAGED, DONE, NICENESS, UNAVAILABLE
from firn_broker.log.check_process import serve
from firn_broker.log_types import BatchRange, TableRange
from firn_broker.settings import BrokerSettings
from firn_broker.storage.objects import open_objects


class Worker:
    """Answers frames, with the stores that the settings name."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._settings = ""
        self._rebuilder: Rebuilder | None = None

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a frame."""
        asked = json.loads(frame)
        try:
            if self._rebuilder is None or asked["settings"] != self._settings:
                settings = BrokerSettings.model_validate_json(asked["settings"])
                self._rebuilder = Rebuilder(open_objects(settings.objects), TableFiles(settings.history.stores))
                self._settings = asked["settings"]
            ranges = [
                BatchRange(base, last, TableRange(*place), newest, append_ms)
                for base, last, place, newest, append_ms in asked["ranges"]
            ]
            return b"".join([DONE, *self._runner.run(self._rebuilder.rebuild(ranges))])
        except CorruptDataError as error:
            return DAMAGED + str(error).encode()
        except FirnError as error:
            return UNAVAILABLE + str(error).encode()


if __name__ == "__main__":
    log_as_json()
    serve(Worker().answer, NICENESS)
