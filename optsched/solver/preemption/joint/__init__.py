"""One integer program for all gangs of a session, which selects gangs to start, nodes and victims.
"""
