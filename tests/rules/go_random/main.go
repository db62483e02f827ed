// Prints the first 607 numbers of Go's math/rand for the seed 42: the state of its generator, from
// which all further numbers follow as x[i] = x[i-607] + x[i-273].
package main

import (
	"fmt"
	"math/rand"
)

func main() {
	source := rand.New(rand.NewSource(42))
	for i := 0; i < 607; i++ {
		fmt.Println(source.Uint64())
	}
}
