"""HTTP servers for health and metrics, and the certificates of all servers."""
