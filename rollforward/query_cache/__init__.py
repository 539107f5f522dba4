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

How old a value may be: `ttl_s`, and `stale_s` more while it is refreshed. When a value expires, one
caller refreshes it, under a lease in memcached, and all others are served the old one. A busy value
is refreshed a little before it expires, by chance: the likelier, the longer it takes (XFetch). In a
process one caller at a time computes a value; where there is no old one, the others wait for it, in
other processes, too, for as long as its process lives: it renews the lease.

A name has a generation, a random id in memcached, which is part of every key. To invalidate is to
set another one: what was read before the commit is stored where no later reader looks. Keys are
hashed and hold project, database and namespace. Values are JSON behind a header with a checksum,
checked against the return type of the function; whatever else stands there is a miss. Nothing is
unpickled.

Lost on failure: nothing but time. memcached is a hint: without it every call computes, and calls
that come together share one result. A process that dies between a commit and its `invalidate`, or
that does not reach memcached then, leaves the old value for `ttl_s` + `stale_s` at most, whatever a
clock says: memcached itself drops it.
Cost: of a hit two calls of memcached, no reads; of a miss seven, and what the function reads.

Routes: none, and nothing to register: no task and no sweep belongs to it.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Avoid repeating
queries". Early refreshes: A. Vattani, F. Chierichetti, K. Lowenstein, "Optimal probabilistic cache
stampede prevention", VLDB 2015. Leases: R. Nishtala et al., "Scaling memcache at Facebook", NSDI
2013.
"""

from rollforward.query_cache.call import Reading
from rollforward.query_cache.query import CachedQuery, cached, get_or_compute, invalidate
from rollforward.query_cache.stats import CacheStats

__all__ = ["CacheStats", "CachedQuery", "Reading", "cached", "get_or_compute", "invalidate"]
