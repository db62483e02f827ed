// Command oracle prints random pods and what Kubernetes says that each of them takes, one a line.
package main

import (
	"encoding/json"
	"math/rand"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

const pods = 150

var amounts = map[v1.ResourceName][]string{
	v1.ResourceCPU:      {"100m", "250m", "1", "1500m", "0", "2.5"},
	v1.ResourceMemory:   {"64Mi", "1Gi", "1500M", "128974848", "0"},
	"nvidia.com/gpu":    {"1", "2", "8"},
	"hugepages-2Mi":     {"2Mi", "64Mi"},
	"ephemeral-storage": {"1Gi", "10G"},
}

var names = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, "nvidia.com/gpu", "hugepages-2Mi",
	"ephemeral-storage"}

type row struct {
	Spec    v1.PodSpec       `json:"spec"`
	Status  v1.PodStatus     `json:"status"`
	Request map[string]int64 `json:"request"`
}

func main() {
	random := rand.New(rand.NewSource(1))
	out := json.NewEncoder(os.Stdout)
	for range pods {
		pod := randomPod(random)
		request := helpers.PodRequests(pod, helpers.PodResourcesOptions{UseStatusResources: true})
		if err := out.Encode(row{pod.Spec, pod.Status, base(request)}); err != nil {
			panic(err)
		}
	}
}

func base(list v1.ResourceList) map[string]int64 {
	found := map[string]int64{}
	for name, quantity := range list {
		amount := quantity.Value()
		if name == v1.ResourceCPU {
			amount = quantity.MilliValue()
		}
		if amount != 0 {
			found[string(name)] = amount
		}
	}
	return found
}

func randomList(random *rand.Rand, chance float64) v1.ResourceList {
	list := v1.ResourceList{}
	for _, name := range names {
		if random.Float64() < chance {
			texts := amounts[name]
			list[name] = resource.MustParse(texts[random.Intn(len(texts))])
		}
	}
	return list
}

func randomPod(random *rand.Rand) *v1.Pod {
	pod := &v1.Pod{}
	for i := range 1 + random.Intn(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, container(random, "c", i))
	}
	always := v1.ContainerRestartPolicyAlways
	for i := range random.Intn(4) {
		init := container(random, "i", i)
		if random.Float64() < 0.5 {
			init.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, init)
	}
	if random.Float64() < 0.3 {
		pod.Spec.Overhead = randomList(random, 0.4)
	}
	if random.Float64() < 0.3 {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{}}
		for name, quantity := range randomList(random, 0.5) {
			if helpers.IsSupportedPodLevelResource(name) {
				pod.Spec.Resources.Requests[name] = quantity
			}
		}
	}
	if random.Float64() < 0.4 {
		pod.Status = status(random, pod)
	}
	return pod
}

func container(random *rand.Rand, prefix string, number int) v1.Container {
	name := prefix + strings.Repeat("x", number)
	requests := randomList(random, 0.6)
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: requests}}
}

func status(random *rand.Rand, pod *v1.Pod) v1.PodStatus {
	given := v1.PodStatus{Phase: v1.PodRunning}
	if random.Float64() < 0.3 {
		given.Conditions = []v1.PodCondition{
			{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: reasons[random.Intn(2)]}}
	}
	for _, each := range pod.Spec.Containers {
		given.ContainerStatuses = append(given.ContainerStatuses, held(random, each))
	}
	for _, each := range pod.Spec.InitContainers {
		given.InitContainerStatuses = append(given.InitContainerStatuses, held(random, each))
	}
	return given
}

var reasons = []string{v1.PodReasonInfeasible, v1.PodReasonDeferred}

func held(random *rand.Rand, of v1.Container) v1.ContainerStatus {
	resources := &v1.ResourceRequirements{Requests: randomList(random, 0.5)}
	return v1.ContainerStatus{Name: of.Name, AllocatedResources: randomList(random, 0.5),
		Resources: resources}
}
