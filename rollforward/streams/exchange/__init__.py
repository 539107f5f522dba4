"""Exchange: records on their way from sources and workers into inboxes."""
