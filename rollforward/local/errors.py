"""The one error base of the local platform: its text is shown as it is."""


class PlatformError(Exception):
    """A failure of the local platform, in a sentence that says how to fix it."""

    exit_code = 1


class ServiceMissingError(PlatformError):
    """A backing service is not installed here."""


class ServiceFailedError(PlatformError):
    """A backing service did not start, or ended on its own."""


class NoResponseError(PlatformError):
    """A service that runs does not answer, or not in time."""


class NoPlatformError(PlatformError):
    """No platform answers at an address."""

    exit_code = 3


class PortTakenError(PlatformError):
    """Another process listens where we want to."""


class NotLocalError(PlatformError):
    """A setting points at something that is not on this machine."""


class BrokenAppError(ServiceFailedError):
    """The app runs, but each of its pages says only why it cannot be loaded."""


class UsageError(PlatformError):
    """An argument of the command line that names nothing, or makes no sense."""

    exit_code = 2
