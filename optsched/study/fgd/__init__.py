"""A reproduction of the experiment of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023).

Pods of the openb trace arrive one by one on 1 213 GPU nodes and never leave; a policy scores the
nodes. The paper's simulator, hkust-adsl/kubernetes-scheduler-simulator, is the reference. This
package reproduces every number of the curves that were published with the simulator.
"""
