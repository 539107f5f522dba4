"""Invitations: one mail to each guest, however many there are."""
