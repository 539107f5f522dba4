"""Cloud Tasks on this machine: the real API, gRPC and REST, and a window into it.

The official google-cloud-tasks client talks to it unchanged; what the service
hides (attempts, clock, faults) is open through a JSON API.

- engine: the state machine, without a network. It ties together queues, tasks, attempts (with
  outcomes), history and operations, which change one engine_state.
- store: what is kept, in the tables of one database.
- errors, validation, statuses: what the service refuses, demands and makes of a response.
- methods: the calls of the API. front: one port, from which grpc and rest serve them.
- dispatcher, control: deliveries, and the window.
- emulator: all of it together, started and stopped.
"""
