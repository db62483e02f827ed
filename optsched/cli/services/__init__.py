"""Commands that run the processes of a cluster: scheduler, controllers and admission webhook."""
