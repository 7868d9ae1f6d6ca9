#!/bin/sh
# Version: k8s.io/apimachinery v0.37.2, resource.Quantity.
#
# Guess: a quantity above 2^63-1 is capped, as the comment of the type says: "16Ei" is 2^63-1. So Value() of a very
# large quantity is a very large number.
#
# Behaviour: only quantities with a binary suffix are capped. "10E", 10^19, is kept, and its Value() is 0. That of 2^63
# is negative. There is no error; Cmp compares correctly, and AsInt64 reports that the number does not fit. MilliValue
# of a quantity that fits wraps as well: that of 2^63-1 is -1000, and not capped.
#
# Output seen:
#   16Ei: Value=9223372036854775807 Cmp(1)=1
#   10E: Value=0 Cmp(1)=1
#   9223372036854775808: Value=-9223372036854775808 Cmp(1)=1
#   9223372036854775807: MilliValue=-1000
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require k8s.io/apimachinery v0.37.2
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	for _, text := range []string{"16Ei", "10E", "9223372036854775808"} {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: Value=%d Cmp(1)=%d\n", text, q.Value(), q.Cmp(resource.MustParse("1")))
	}
	const largest = "9223372036854775807"
	q := resource.MustParse(largest)
	fmt.Printf("%s: MilliValue=%d\n", largest, q.MilliValue())
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
16Ei: Value=9223372036854775807 Cmp(1)=1
10E: Value=0 Cmp(1)=1
9223372036854775808: Value=-9223372036854775808 Cmp(1)=1
9223372036854775807: MilliValue=-1000
WANT
cmp seen want
