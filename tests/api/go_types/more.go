package main

import (
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
)

// Kinds that came later than v1.12.
var more = map[string]any{"CronJob": batch.CronJob{}}
