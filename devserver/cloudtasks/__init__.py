"""Cloud Tasks on this machine: the real v2 gRPC API, and a window into it.

The official google-cloud-tasks client talks to it unchanged; what the service
hides (attempts, clock, faults) is open through a JSON API.

- engine: the state machine (queues, tasks, attempts); no network in it.
- grpc_server, dispatcher, control: the three networks around it.
- emulator: all of it together, started and stopped.
"""
