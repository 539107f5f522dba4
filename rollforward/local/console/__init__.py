"""The console: what the app does in the background, and a button for each thing.

- server: the aiohttp application, start and stop.
- guards: who may ask (this machine, this origin, with a token on every form).
- pages: the HTML pages, a module each; they work without JavaScript.
- api: JSON next to the Cloud Tasks emulator's own control API.
- work, dead_tasks, outbox: what the pages show of queues, tasks and what the app stored.
- datastore_reader: the connection to Datastore.
- words: how times, sizes, states and bodies are written for people.
"""
