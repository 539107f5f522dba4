"""Blog: posts and comments in pages of the same cost, however far back a page is.

Pattern: paging by key order, cached queries, and views that rank the most discussed posts.
Seed: B. Slatkin, "Building scalable web apps with Google App Engine", Google I/O 2008.
"""
