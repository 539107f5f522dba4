"""Invitations: one mail to each guest, however many guests a party has.

Pattern: continuations over the rows of a file (import) and over entities (fan-out of mails).
Seed: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", Google I/O 2010.
"""
