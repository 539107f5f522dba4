"""Claims about any Cloud Tasks emulator: `EMULATOR=host:port make test ARGS="-m emulators"`.

Without EMULATOR they run against `rollforward tasks-emulator`. docs/reference/emulators.md has a
row for each test, with the first line of its docstring.
"""
