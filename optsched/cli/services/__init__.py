"""Commands that run the services of a cluster: scheduler, controllers and admission webhook."""
