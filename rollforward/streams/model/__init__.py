"""Model: the vocabulary of a pipeline's author, without any service.

Computations, sources and sinks are declared with these classes; a hook gets a `Context`, a `Record`
or a `Timer`. `key_state` and `bundle` are the runner's inputs and outputs: keyed states, and the
effects of a bundle.

This is the lowest room of streams: it imports none of the others, and all of them import it.
"""
