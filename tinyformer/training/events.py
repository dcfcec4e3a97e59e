"""TensorBoard event files. They need tensorboardX.

An event file is a sequence of records (TensorFlow's TFRecord): the data length in 8 bytes, its checksum in 4, the data, and its
checksum in 4. The data is a protocol buffer ``Event``: a step, a time, and a summary such as a scalar or an image.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from io import FileIO
from typing import Any

from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from tinyformer.common.files import read_file
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.safety import new_file, remove_stale
from tinytensor.device.disk import atomic_write, make_folder, remove


class EventFiles:
    """The event files of a run, one for each time it was started or resumed.

    tensorboardX's SummaryWriter is not used: its thread hangs on a full disk, does not survive a fork, and reopens the same
    file within a second.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self._after = -1  # the checkpoint step from which the run resumes
        self._waiting: list[Event] = []  # events of a new run wait until its folder is in place
        self._path = folder.tensorboard  # the file that is written now
        self._file: FileIO | None = None

    def keep_until(self, step: int) -> int:
        """Remove events after a step, such as a resumed checkpoint's, and any truncated record. Return the last step with a
        value, or -1."""
        remove_stale(self.folder.tensorboard)
        self._after = step
        last = -1
        for path in self.folder.event_files():
            content = read_file(path, None)
            kept = [(record, event) for record, event in _records(content) if event.step <= step]
            if not any(event.summary.value for _, event in kept):
                remove(path)
                continue
            if sum(len(record) for record, _ in kept) < len(content):
                with atomic_write(path) as file:
                    file.write(b"".join(record for record, _ in kept))
            numbers = [event.step for _, event in kept if any(v.HasField("simple_value") for v in event.summary.value)]
            last = max([last, *numbers])
        return last

    def add(self, step: int, summary: Any) -> None:
        """Add a Summary (a protocol buffer) for the next ``flush``."""
        self._waiting.append(Event(step=step, wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        """Write pending events if the run's folder is in place. OSErrors include the file name."""
        if not self._waiting or not self.folder.is_in_place():
            return
        content = b"".join(map(_record, self._waiting))
        self._waiting = []
        if self._file is None:
            self._file = self._open()
            version = Event(wall_time=time.time(), file_version="brain.Event:2")
            # A running TensorBoard discards what it has read of this step and later ones.
            restart = Event(step=self._after + 1, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
            content = _record(version) + _record(restart) + content
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:  # such as a full disk
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def _open(self) -> FileIO:
        """Open a new file. Its name sorts last, because TensorBoard reads files in name order."""
        numbers = [path.name.split(".")[3] for path in self.folder.event_files()]
        now = max(int(time.time()), *(int(number) + 1 for number in numbers if number.isdecimal()), 0)
        make_folder(self.folder.tensorboard)
        self._path = self.folder.tensorboard / f"events.out.tfevents.{now:010d}.{socket.gethostname()}"
        return new_file(self._path)

    def close(self) -> None:
        """Write pending events and close the file."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None


def _record(event: Event) -> bytes:
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def _records(content: bytes) -> Iterator[tuple[bytes, Event]]:
    """Yield each record in a file's content with its event. Stop at the first truncated or damaged record."""
    start = 0
    while start + 8 <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        record = content[start : start + 16 + length]
        if len(record) < 16 + length:
            return
        try:
            event = Event.FromString(record[12:-4])
        except DecodeError:
            return
        yield record, event
        start += len(record)
