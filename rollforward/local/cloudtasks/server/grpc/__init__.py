"""The API over gRPC, with the codes, words and details of the service.

`server` starts it: `loop` serves, or `threads` where the core of gRPC is not as `loop` knows it.
The first connection of gRPC loads them: gRPC takes as long to load as the engine does, and a
quarter of the memory.
"""
