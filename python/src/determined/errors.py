"""Everything this package raises on purpose.

```text
DeterminedError
├── MasterNotFoundException       the master could not be reached, all retries included
│   └── MasterNotTrusted          it was reached, and its certificate was refused
├── BadResponseException          the master answered something that is not its protocol
├── APIException                  the master refused; has .status_code and .message
│   ├── UnauthenticatedException  401
│   ├── ForbiddenException        403
│   └── NotFoundException         404
├── InvalidTaskInfo               the files or variables describing this task are broken
├── StorageError
│   ├── CheckpointNotFound
│   └── UnsupportedStorage        also a NotImplementedError
└── DistributedError              the processes of a training cannot meet, or one has gone
InvalidHP                         raised by user code, see its own description
```

Wrong arguments raise the built-in `ValueError`, `TypeError` and `RuntimeError`, as the PyPI package does.
"""

from __future__ import annotations

__all__ = [
    "APIException",
    "BadResponseException",
    "CheckpointNotFound",
    "DeterminedError",
    "DistributedError",
    "ForbiddenException",
    "InvalidHP",
    "InvalidTaskInfo",
    "MasterNotFoundException",
    "MasterNotTrusted",
    "NotFoundException",
    "StorageError",
    "UnauthenticatedException",
    "UnsupportedStorage",
]


class DeterminedError(Exception):
    """Base of all errors of this package except `InvalidHP`."""

    #: What went wrong, for users.
    message: str

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class MasterNotFoundException(DeterminedError):
    """No answer from the master; raised after the last retry."""


class MasterNotTrusted(MasterNotFoundException):
    """The master's certificate was refused. Not retried for long: time does not cure it."""


class BadResponseException(DeterminedError):
    """The answer was not what the protocol allows, for example not JSON."""


class APIException(DeterminedError):
    """The master refused the request."""

    #: The HTTP status of the answer.
    status_code: int

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class UnauthenticatedException(APIException):
    """401: the token is unknown or has expired."""


class ForbiddenException(APIException):
    """403: the token's owner may not do this."""


class NotFoundException(APIException):
    """404: the object does not exist, or may not be seen."""


class InvalidTaskInfo(DeterminedError):
    """The description of the running task cannot be read."""


class StorageError(DeterminedError):
    """Base of errors of checkpoint storage."""


class CheckpointNotFound(StorageError):
    """The checkpoint is not in the checkpoint storage."""


class UnsupportedStorage(StorageError, NotImplementedError):
    """The configured kind of checkpoint storage is not available in this package."""


class DistributedError(DeterminedError):
    """The processes of a training cannot meet, make different calls, or one of them has gone."""


class InvalidHP(Exception):
    """Raise it inside `with core.init()` when the hyperparameters cannot work together.

    The context then reports the trial as invalid and leaves with exit status 0; the searcher may try
    another point instead. It is not a `DeterminedError`, because it is the user's statement.
    """

    #: Why the hyperparameters are invalid.
    msg: str

    def __init__(self, msg: str = "...") -> None:
        if not isinstance(msg, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the message of InvalidHP must be a string, not {type(msg).__name__}")
        super().__init__(msg)
        self.msg = msg
