"""`optsched solve`: solve clusters and benchmark instances that are read from files."""
