"""The command line: one file per command, one file that reads options, one file that writes to the terminal."""
