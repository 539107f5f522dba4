"""The local platform: what App Engine, Datastore, Cloud Tasks and cron do in the cloud.

`python -m devserver` (or `make run`) starts it all, on this machine only:

- stack: everything in order, up and down; settings: what can be chosen.
- datastore, memcached, mail: the backing services; services: the same for tests.
- app: gunicorn, reloaded on save; cron, schedules: cron.yaml.
- cloudtasks: Cloud Tasks; console: what is going on, on port 8000.
- processes, guard: children that never outlive us; ports, sdk, logs, doctor.

The app meets it over the network alone and never imports it.
"""
