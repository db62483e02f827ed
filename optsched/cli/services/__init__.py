"""Commands that run the services in a cluster: scheduler, controllers, admission webhook."""
