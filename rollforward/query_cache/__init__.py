"""Query cache: results that everyone shares, kept in memcached for a stated time.

    @dataclass(frozen=True)
    class Headline:
        title: str
        comments: int

    @cached("front-page", ttl_s=60)
    def front_page(clients: Clients, tag: str) -> list[Headline]:
        return [Headline(post.title, post.comments) for post in newest(tag).fetch(10)]

    front_page(clients, "python")       # the list, from memcached or from the function
    front_page.invalidate(clients)      # after the commit that changed a post
    front_page.read(clients, "python")  # the list with its age, and what it cost

A value is served for `ttl_s`, and for `stale_s` more while it is refreshed. When it expires, one
caller refreshes it under a lease in memcached, and all others get the old one
(stale-while-revalidate). A busy value is refreshed a little before it expires, by chance: the
longer its computation, the likelier (XFetch). In a process one caller at a time computes a value
(single flight). Without an old value the others wait, in other processes, too, for as long as the
computing process lives and renews its lease.

A name has a generation, a random id in memcached, which is part of every key. Invalidation sets
another id, so results read before the commit are stored where no later reader looks. Keys are
hashed and hold project, database and namespace. Values are JSON behind a header with a checksum,
checked against the return type of the function; anything else is a miss. Nothing is unpickled.

Lost on failure: nothing but time. memcached is a hint: without it every call computes, and
concurrent calls share one result. A process that dies between a commit and its `invalidate`, or
does not reach memcached then, leaves the old value for at most `ttl_s` + `stale_s`, because
memcached itself drops it.
Cost: a hit makes two calls of memcached and no reads; a miss makes eight, and the function's reads.

Routes: none, and nothing to register: no task and no sweep belongs to it.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Avoid repeating
queries". Early refreshes: A. Vattani, F. Chierichetti, K. Lowenstein, "Optimal probabilistic cache
stampede prevention", VLDB 2015. Leases: R. Nishtala et al., "Scaling memcache at Facebook", NSDI
2013.
"""

from rollforward.query_cache.call import CachedResult
from rollforward.query_cache.query import CachedQuery, cached, get_or_compute, invalidate
from rollforward.query_cache.stats import CacheStats

__all__ = ["CacheStats", "CachedQuery", "CachedResult", "cached", "get_or_compute", "invalidate"]
