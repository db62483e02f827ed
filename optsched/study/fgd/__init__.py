"""The experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), step by step.

Pods of the openb trace arrive one by one on 1 213 GPU nodes and never leave; a policy scores the
nodes. Its simulator, hkust-adsl/kubernetes-scheduler-simulator, is the reference: the curves that
it shipped are reproduced here number by number.
"""
