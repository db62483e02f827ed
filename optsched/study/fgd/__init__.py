"""A reproduction of the experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023).

On 1 213 GPU nodes, a scoring policy places the pods of the openb trace, which arrive one by one and
never finish. The reference is the paper's simulator, hkust-adsl/kubernetes-scheduler-simulator.
This package reproduces every data point of the curves published with the simulator.
"""
