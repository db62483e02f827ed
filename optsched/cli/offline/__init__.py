"""`optsched solve`: clusters and benchmark instances solved from files."""
