#!/bin/sh
# Version: hashicorp/cronexpr v1.1.3, adhocore/gronx v1.19.6 (Go).
#
# Guess: in the field for the day of the week, 0 and 7 are both Sunday, as in crontab(5). Both libraries accept 7 alone
# and in a list, and run the job on Sundays. So "5-7" is Friday to Sunday. A library that does not support it refuses
# it, as robfig/cron does.
#
# Behaviour: as the end of a range, 7 is accepted and then lost: "5-7" runs on Fridays and Saturdays only. There is no
# error.
#
# Output seen:
#   cronexpr: 7 is Sun; 6,7 is Sat Sun; 5-7 is Fri Sat
#   gronx: 7 is Sun; 6,7 is Sat Sun; 5-7 is Fri Sat
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require (
	github.com/adhocore/gronx v1.19.6
	github.com/hashicorp/cronexpr v1.1.3
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/adhocore/gronx"
	"github.com/hashicorp/cronexpr"
)

func main() {
	show("cronexpr", func(line string, t time.Time) (time.Time, error) {
		e, err := cronexpr.Parse(line)
		if err != nil {
			return t, err
		}
		return e.Next(t), nil
	})
	show("gronx", func(line string, t time.Time) (time.Time, error) { return gronx.NextTickAfter(line, t, false) })
}

// show prints the days of one week, from Monday to Sunday, on which jobs run.
func show(name string, next func(string, time.Time) (time.Time, error)) {
	var found []string
	for _, field := range []string{"7", "6,7", "5-7"} {
		var days []string
		t := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		for {
			var err error
			if t, err = next("0 0 * * "+field, t); err != nil {
				panic(err)
			}
			if t.Day() > 8 {
				break
			}
			days = append(days, t.Format("Mon"))
		}
		found = append(found, field+" is "+strings.Join(days, " "))
	}
	fmt.Printf("%s: %s\n", name, strings.Join(found, "; "))
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
cronexpr: 7 is Sun; 6,7 is Sat Sun; 5-7 is Fri Sat
gronx: 7 is Sun; 6,7 is Sat Sun; 5-7 is Fri Sat
WANT
cmp seen want
