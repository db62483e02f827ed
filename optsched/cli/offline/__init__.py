"""`optsched solve`: solve clusters and benchmark instances from files."""
