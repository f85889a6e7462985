"""Pages for people: the report of a folder of results, and the table of all claims of the paper."""
