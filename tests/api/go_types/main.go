// Prints the fields of Volcano's kinds as its Go types have them: kind, path and type of each.
package main

import (
	"fmt"
	"reflect"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	bus "volcano.sh/apis/pkg/apis/bus/v1alpha1"
	flow "volcano.sh/apis/pkg/apis/flow/v1alpha1"
	nodeinfo "volcano.sh/apis/pkg/apis/nodeinfo/v1alpha1"
	scheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	topology "volcano.sh/apis/pkg/apis/topology/v1alpha1"
)

var leaves = map[reflect.Type]string{
	reflect.TypeOf(metav1.Time{}):                      "time",
	reflect.TypeOf(metav1.Duration{}):                  "duration",
	reflect.TypeOf(resource.Quantity{}):                "quantity",
	reflect.TypeOf(metav1.ObjectMeta{}):                "meta",
	reflect.TypeOf(corev1.PodTemplateSpec{}):           "plain",
	reflect.TypeOf(corev1.PersistentVolumeClaimSpec{}): "plain",
}

func walk(path string, t reflect.Type, out map[string]string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, known := leaves[t]; known {
		out[path] = name
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		out[path] = "object"
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "" && strings.Contains(options, "inline"):
				inlined := map[string]string{}
				walk(path, field.Type, inlined)
				for at, kind := range inlined {
					out[at] = kind
				}
			case name != "" && name != "-":
				walk(path+"."+name, field.Type, out)
			}
		}
	case reflect.Slice:
		out[path] = "list"
		walk(path+"[]", t.Elem(), out)
	case reflect.Map:
		out[path] = "map"
		walk(path+"{}", t.Elem(), out)
	default:
		out[path] = t.Kind().String()
	}
}

func main() {
	kinds := map[string]any{
		"Job": batch.Job{}, "Command": bus.Command{}, "JobFlow": flow.JobFlow{},
		"JobTemplate": flow.JobTemplate{}, "Queue": scheduling.Queue{},
		"PodGroup": scheduling.PodGroup{}, "HyperNode": topology.HyperNode{},
		"Numatopology": nodeinfo.Numatopology{},
	}
	for name, kind := range more {
		kinds[name] = kind
	}
	var lines []string
	for name, kind := range kinds {
		found := map[string]string{}
		walk("", reflect.TypeOf(kind), found)
		for path, is := range found {
			if path != "" {
				lines = append(lines, fmt.Sprintf("%s %s %s", name, path, is))
			}
		}
	}
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
}
