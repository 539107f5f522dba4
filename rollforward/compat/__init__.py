"""Modules with the names and the calls of App Engine's bundled services, for apps that move.

    from rollforward.compat import deferred  # was: from google.appengine.ext import deferred

`deferred` is the only one: its calls may stay as they are. For the other services
docs/howto/migrate/ shows the code to write instead.

Nothing in the library imports this package, so an app that does not use it pays nothing for it.
"""

from rollforward.compat import deferred

__all__ = ["deferred"]
