// Command oracle prints what Go makes of quantities and durations, one table row a text.
package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

var numbers = strings.Fields(`0 1 2 -1 +1 1.5 -1.5 .5 5. 0.1 0.0001 -0.25 007 00.50 100 999 1000 1023
	1024 1536 123456789 123456789012345678901234567890 1.000000001 1.0000000001 0.0000000001
	-0.0000000004 9223372036854775 9223372036854775807 9223372036854775808 18446744073709551616`)

var suffixes = []string{"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti",
	"Pi", "Ei", "e0", "e3", "E3", "e-3", "E+3", "e-10", "e18"}

// Texts that people and programs get wrong, or that only Go's reader takes.
var odd = []string{"", " ", "1 ", " 1", "1 Gi", "1Mi ", "1\n", "\t1", "1\u00a0", "100K", "100KB",
	"1ki", "1mi", "1gi", "1Gb", "1GB", "1g", "1t", "1GiB", "1I", "1i", "1Kii", "1K", "1Kn", "1nn",
	"1mm", "100mi", "1e", "1E", "1e+", "1e-", "1E+", "1ee3", "1e3e", "1e3.0", "1e.5", "1e1_0",
	"1e 3", "NaN", "nan", "Infinity", "inf", "-inf", "Inf", "1_000", "1,000", "1'000", "1.000.000",
	"1..5", "--1", "+-1", "-+1", "1-", "1+", "1-1", "0x10", "0b1", "0o7", "1f", "1L", "١", "٣", "५",
	"１", "１００m", "1μ", "1µ", "½", "∞", "null", "true", "~", "two", "\"1\"", "'1'", "1%", "50%",
	"$1", "1/2", "1:30", "m", "n", "u", "k", "Ki", "Ti", "Pi", "Ei", "E", "e", "e3", "E5", "e-9",
	"e-10", "+", "-", ".", "+.", "-.", ".m", ".Ki", ".Pi", "+m", "-Gi", "-e3", ".n", "-.Ei",
	"-0", "+0", "0.0", "-0.0", "0n", "0Ki", "0e100", "0e-100", "00", "000Gi", "1e20", "1e30", "1e-20",
	"-1e-20", "10E", "16Ei", "8Ei", "7Ei", "-8Ei", "1e99", "0.5Ki", "0.3Ki", "-0.3Ki", "0.0001Ki",
	"1.1Ki", "1.1Mi", "1.25Gi", "0.000000001Ki", "1.0000000000001Gi", "64Gi", "256Gi", "512Gi",
	"1500m", "2000m", "500m", "250m", "0.5", "12e6", "4e-1", "1.5e3", "1.5E3", "1.5E", "128974848",
	"129e6", "129M", "123Mi", "128974848000m", "1e018", "1e-018", "1E-3", "3.14159265358979323846"}

var durations = []string{"", "0", "+0", "-0", "00", "0s", "1", "1.5", "-1", "1s", "-1s", "+1s", "1m", "1h",
	"1ms", "1us", "1µs", "1μs", "1ns", "1d", "1w", "1y", "1S", "1H", "1M", "1min", "1sec", "1 s", " 1s",
	"1s ", "1h30m", "1h 30m", "1m14s", "74s", "90m", "1h0m0s", "30m1h", "1s1s", "1.5h", "1.s", ".5s",
	".s", "s", "ms", "-", "+", ".", "-.5s", "1..5s", "1e3s", "1_0s", "1,5s", "0.1s", "0.3s", "0.7ms",
	"1.000000001s", "1.0000000001s", "0.9999999999ns", "1.9ns", "0.333333333h", "2562047h47m16.854775807s",
	"2562047h47m16.854775808s", "-2562047h47m16.854775808s", "2562048h", "9223372036854775807ns",
	"9223372036854775808ns", "300ms", "1.5s", "100ms", "20us", "1h1ns", "59.999999999s", "10m", "600s",
	"259200s", "24h", "٣s", "infs", "--1s", "1s-1s", "1h-30m", "3m0.5s", "0.000001s", "1234567us"}

func main() {
	printRow("text", "answer", "canonical", "nanos", "value", "milli", "note")
	for _, number := range numbers {
		for _, suffix := range suffixes {
			printQuantity(number + suffix)
		}
	}
	for _, text := range odd {
		printQuantity(text)
	}
	for _, text := range durations {
		printDuration(text)
	}
}

func printQuantity(text string) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		printRow(quoted(text), "reject", "", "", "", "", "")
		return
	}
	canonical, value, milli := quantity.String(), quantity.Value(), quantity.MilliValue()
	exact := new(big.Rat).SetInt(quantity.AsDec().UnscaledBig())
	exact.Mul(exact, power(-int64(quantity.AsDec().Scale())))
	notes := []string{}
	if quantity.Format == resource.BinarySI && exact.IsInt() && isLargest(exact.Num()) {
		notes = append(notes, "capped")
	}
	if again, err := resource.ParseQuantity(canonical); err != nil || again.Cmp(quantity) != 0 {
		notes = append(notes, "canonical:loses")
	}
	notes = append(notes, deviation("value", value, exact)...)
	notes = append(notes, deviation("milli", milli, new(big.Rat).Mul(exact, power(3)))...)
	nanos := new(big.Rat).Mul(exact, power(9)).RatString()
	printRow(quoted(text), "quantity", canonical, nanos, fmt.Sprint(value), fmt.Sprint(milli), strings.Join(notes, " "))
}

func printDuration(text string) {
	duration, err := time.ParseDuration(text)
	if err != nil {
		printRow(quoted(text), "reject duration", "", "", "", "", "")
		return
	}
	printRow(quoted(text), "duration", duration.String(), fmt.Sprint(duration.Nanoseconds()), "", "", "")
}

// deviation names how got misses the exact amount rounded away from zero: by the direction of
// rounding, which costs at most two, or by an int64 that wrapped around on the way.
func deviation(name string, got int64, exact *big.Rat) []string {
	whole, rest := new(big.Int).QuoRem(exact.Num(), exact.Denom(), new(big.Int))
	whole.Add(whole, big.NewInt(int64(rest.Sign())))
	switch {
	case whole.Cmp(big.NewInt(got)) == 0:
		return nil
	case whole.Sub(whole, big.NewInt(got)).CmpAbs(big.NewInt(2)) <= 0:
		return []string{name + ":rounds"}
	default:
		return []string{name + ":wraps"}
	}
}

func power(exponent int64) *big.Rat {
	ten := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(max(exponent, -exponent)), nil))
	if exponent < 0 {
		return ten.Inv(ten)
	}
	return ten
}

func isLargest(number *big.Int) bool {
	return new(big.Int).Abs(number).Cmp(big.NewInt(1<<63-1)) == 0
}

func quoted(text string) string {
	encoded, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

func printRow(cells ...string) {
	fmt.Fprintln(os.Stdout, strings.Join(cells, "\t"))
}
