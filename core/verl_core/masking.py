"""Secrets that this process has read, masked wherever text leaves it: errors, log records, tracebacks, the state log.

What was learned is masked as it is and as it looks inside JSON, ``repr`` and URLs. A secret of four to seven characters
is masked where it stands alone, shorter ones are part of any text. Passwords in URLs and ``Authorization`` headers are
masked whoever wrote them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType
from urllib.parse import quote, quote_plus

MASK = "***"
URL = re.compile(
    r"(?P<user>://[^/@\s:]+:)(?!\$\{)(?P<password>[^/@\s]+)(?=@)"
    r"|(?P<key>[?&](?:access_?)?(?:key|token|sig|signature|secret|password)=)(?!\$\{)(?P<value>[^&\s\"']+)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(authorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer|aws4-hmac-sha256)\s+)[^\s,'\"]+", re.IGNORECASE
)
_NAME = re.compile(
    r"secret|passw(or)?d|access_?key|api_?key|private_?key|credential|webhook|token(?!iz|s|_(len|count|limit|budget))",
    re.IGNORECASE,
)
_ALONE, _ANYWHERE = 4, 8  # characters from which on a secret is masked

_mutex = threading.Lock()
_known: set[str] = set()
_forms: re.Pattern[str] | None = None
_guarded = False


def secret_name(name: str) -> bool:
    """Whether a key or a variable sounds like a secret (``webhook``, ``AWS_SECRET_ACCESS_KEY`` …)."""
    return _NAME.search(name) is not None


def learn(texts: Iterable[str]) -> None:
    """Mask these from now on, and the passwords of those that are URLs."""
    global _forms
    texts = list(texts)
    parts = [m["password"] or m["value"] for text in texts for m in URL.finditer(text)]
    with _mutex:
        new = {text for text in (*texts, *parts) if len(text) >= _ALONE and text != MASK} - _known
        if new:
            _known.update(new)
            _forms = re.compile("|".join(_pattern(form) for form in _written(_known)))
    _guard_logging()


def learn_environment(environment: Mapping[str, str]) -> None:
    """Mask the values of all variables that sound like secrets, whether a config refers to them or not."""
    learn(value for name, value in environment.items() if secret_name(name) and len(value) >= _ANYWHERE)


def masked(text: str) -> str:
    """The text without anything that opens a door."""
    text = _HEADER.sub(rf"\1{MASK}", URL.sub(lambda m: f"{m['user'] or m['key']}{MASK}", text))
    return text if _forms is None else _forms.sub(MASK, text)


def show_traceback(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """What Python prints of an error that nobody caught, masked; a ``sys.excepthook``."""
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, trace))))


def guard_tracebacks() -> None:
    """Mask what this process prints of errors that nobody caught, in any thread. For programs, not for libraries."""
    sys.excepthook = show_traceback
    threading.excepthook = lambda died: show_traceback(died.exc_type, died.exc_value, died.exc_traceback)


def _written(secrets: Iterable[str]) -> list[str]:
    """Every way in which a text may hold one of them, longest first: a secret may be part of another."""
    forms = {
        form
        for text in secrets
        for form in (
            text,
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            repr(text)[1:-1],
            quote(text, safe=""),
            quote_plus(text),
        )
    }
    return sorted(forms, key=len, reverse=True)


def _pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _ANYWHERE else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _guard_logging() -> None:
    """Mask every log record of this process as it is made, whatever handler will show it."""
    global _guarded
    with _mutex:
        if _guarded:
            return
        _guarded = True
    make = logging.getLogRecordFactory()

    def made(*args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # its arguments do not fit: the handler says so
            return record
        if (hidden := masked(text)) != text:
            record.msg, record.args = hidden, None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = masked("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return record

    logging.setLogRecordFactory(made)
