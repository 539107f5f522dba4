"""The local platform: what App Engine, Datastore, Cloud Tasks and cron do in the cloud.

`rollforward run` starts it all, on this machine only:

- stack: everything in order, up and down; options, settings, target: what can be chosen;
  environment, service_table: where everything is, and how it is; watch, probes: who answers.
- services: Datastore, memcached and mail; backing starts them, standalone does so for tests.
- saves: the folders that Datastore is saved to.
- app: gunicorn, kept running, reloaded on save and drained; wsgi runs in its workers.
- cron: cron.yaml. cloudtasks: Cloud Tasks. console: a look at it all, on port 8000.
- logs: the terminal and the page Logs. traces: spans of the app, for the page Traces.
- system: ports, and children that never outlive us.

The app meets it over the network alone and never imports it.
"""
