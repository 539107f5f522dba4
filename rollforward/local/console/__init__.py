"""The console: what the app does in the background, and a button for each thing.

- server: the aiohttp application, start and stop. tasks_console: the same for an emulator alone.
- guards: who may ask (this machine, this origin, with a token on every form).
- pages: the HTML pages, a module each; they work without JavaScript. frame: what they share.
- screen: what the pages read and move, and the templates that show it.
- reading: queues, tasks, runs and stored entities, as the pages show them.
- api: JSON next to the Cloud Tasks emulator's own control API; trace_api: traces, and their
  collector.

Words, frame and style come from `rollforward.look`.
"""
