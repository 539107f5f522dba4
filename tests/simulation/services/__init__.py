"""The services of a simulated world: a store, a queue and a memcached in this process."""
