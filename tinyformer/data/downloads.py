"""Files from the network, which are kept in a cache."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from contextlib import suppress
from pathlib import Path

from tinyformer.common.errors import UserError, print_line
from tinyformer.common.files import read_file
from tinytensor.device.caches import user_cache
from tinytensor.device.disk import atomic_write, make_folder


def cache_folder() -> Path | None:
    """The folder for downloads: $TINYFORMER_CACHE if it is set, else "tinyformer" in the user's cache folder. None where there
    is no home to have it in."""
    chosen = os.path.expanduser(os.environ.get("TINYFORMER_CACHE", ""))
    if chosen.startswith("~"):
        return None
    return Path(chosen) if chosen else user_cache("tinyformer")


def kept_at(url: str, sha256: str) -> Path | None:
    """Where the cache has the file at ``url`` once it was downloaded. None where there is no cache."""
    folder = cache_folder()
    return folder / sha256[:16] / url.rsplit("/", 1)[-1] if folder is not None else None


def downloaded(url: str, sha256: str) -> bytes | None:
    """What ``download`` has kept; None where it is not in the cache."""
    path = kept_at(url, sha256)
    if path is not None:
        with suppress(OSError, UserError):
            content = read_file(path)
            if hashlib.sha256(content).hexdigest() == sha256:
                return content
    return None


def download(url: str, sha256: str, timeout: float = 10.0) -> bytes:
    """The content of the file at ``url``, which is downloaded once and then kept in the cache. Where it cannot be kept, a line
    says so. Raises OSError if there is none (no network, no such file), and UserError if its checksum is not ``sha256``."""
    kept = downloaded(url, sha256)
    if kept is not None:
        return kept
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read()
    except http.client.HTTPException as error:  # such as a connection that ends too early
        raise OSError(f"{type(error).__name__}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"the download from {url} is not the expected file (its checksum differs)")
    _keep(kept_at(url, sha256), content)
    return content


def _keep(path: Path | None, content: bytes) -> None:
    """Write a download to the cache, or say that it cannot be."""
    try:
        if path is None:
            raise OSError("there is no home folder")
        make_folder(path.parent)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        where = f" in {path.parent}" if path is not None else ""
        print_line(f"Cannot save the download{where} ({error.strerror or error}). Set TINYFORMER_CACHE to another folder.")
