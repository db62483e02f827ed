// Prints what Go's math/rand gives for a seed: some numbers of each function that the experiment
// asks, then 607 plain ones.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
)

func main() {
	seed, _ := strconv.ParseInt(os.Args[1], 10, 64)
	source := rand.New(rand.NewSource(seed))
	order := make([]int, 1000)
	for i := range order {
		order[i] = i
	}
	source.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, value := range append(order, source.Perm(1213)...) {
		fmt.Println(value)
	}
	for i := 1; i < 200; i++ {
		fmt.Println(source.Intn(i))
	}
	source.Float64()
	for i := 0; i < 607; i++ {
		fmt.Println(source.Uint64())
	}
}
