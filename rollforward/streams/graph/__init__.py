"""Graph: the running computations, their versions, and the streams between them.

`declaration` is what the code declares, `plan` the topology that the head stores: the computations
that actually run. `environment` passes both to generators, with a clock, randomness and row names.
`head` creates and reads the control row.

Below: `storage`, `model`. Above: everything that sends, executes or inspects.
"""
