"""The local platform: what App Engine, Datastore, Cloud Tasks and cron do in the cloud.

`python -m rollforward.local` (or `make run`) starts it all, on this machine only:

- stack: everything in order, up and down (shutdown, draining, dev_lock); settings, target: what
  can be chosen; environment, service_table: where everything is, and how it is.
- datastore, memcached, mail: the backing services; autosave, exports, saves: what Datastore keeps;
  services: the same for tests.
- app: gunicorn; keeper: reloaded on save; wsgi: runs in its workers, load_reports reads what
  fails there. cron, schedules: cron.yaml.
- cloudtasks: Cloud Tasks; console: what is going on, on port 8000.
- watch, probes: who answers; processes, guard: children that never outlive us.

The app meets it over the network alone and never imports it.
"""
