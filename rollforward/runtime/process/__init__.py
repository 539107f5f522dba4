"""This process and the other processes of its instance, and its memory."""
