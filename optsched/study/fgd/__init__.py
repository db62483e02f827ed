"""A reproduction of the experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023).

The pods of the openb trace arrive one by one, are placed on 1 213 GPU nodes by a scoring policy,
and never finish. The reference is the paper's simulator, hkust-adsl/kubernetes-scheduler-simulator.
This package reproduces every number in the curves that were published with the simulator.
"""
