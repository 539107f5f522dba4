"""A profile of latencies and limits: emulators that answer as slowly as services do.

`make run ARGS="--like=cloud"` draws the latency of each remote call from `cloud.toml`, keeps the
limits on writes that no emulator has, and lets instances start cold. `--like=FILE` takes another
profile. docs/adr/0024-a-profile-of-the-cloud.md has the reasons and the state of this.

- profile: the file, its checks, and `Profile.draw`. It needs neither gRPC nor the app, so the
  local platform and simulations use it, too.
- slowdown: interceptors that slow down the app's clients.
- instances: a process that starts cold.

Nothing here is deployed: the folder stays at home (.gcloudignore, Dockerfile), and a deployed app
that has the setting does not start.
"""

from rollforward.cloud_profile.profile import BUNDLED, FROM_PROBES, Profile, ProfileError, load

__all__ = ["BUNDLED", "FROM_PROBES", "Profile", "ProfileError", "load"]
