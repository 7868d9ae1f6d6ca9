#!/bin/sh
# Version: cron 3.0pl1-162 (Debian 12); robfig/cron/v3 v3.0.1, netresearch/go-cron v0.9.1 with DowOrDom, and
# hashicorp/cronexpr v1.1.3 (Go).
#
# Guess: "*/2" is short for "1-31/2". crontab(5) of Debian says so too: if both the day of the month and the day of the
# week are restricted, that is, are not "*", a job runs on either. So "0 0 */2 * 1" runs on odd days and on Mondays.
#
# Behaviour: cron looks at the first character. A field that begins with "*" counts as unrestricted, and then a day must
# match both fields: "*/2" with a Monday means Mondays that are odd days, and "1-31/2" means odd days and all Mondays.
# The libraries follow the manual page, so a line that moves from a crontab to a program runs four times as often.
#
# Output seen:
#   cron, 0 0 */2 * 1, from 2026-01-03: Mon 5 Jan
#   cron, 0 0 1-31/2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
#   robfig, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
#   netresearch, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
#   cronexpr, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
#
# Cron runs for some seconds before each of three midnights, 3, 5 and 12 January, with a faked clock. It needs root, for
# mounts of its own, and apt-get with the lists of Debian 12.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cd "$dir"
apt-get -q -o APT::Sandbox::User=root download cron=3.0pl1-162 libfaketime=0.9.10-2.1 >/dev/null
for package in *.deb; do dpkg-deb -x "$package" package; done
fake=$(find "$dir/package" -name libfaketime.so.1)
mkdir -p spool/crontabs
cat >spool/crontabs/root <<TAB
0 0 */2 * 1 touch $dir/star
0 0 1-31/2 * 1 touch $dir/range
0 0 * * * touch $dir/awake
TAB
chmod 600 spool/crontabs/root

# night starts cron shortly before a midnight, and notes which lines have run after it.
cat >night.sh <<'SH'
mount -t tmpfs none /run
mount -t tmpfs none /var/spool
mkdir /var/spool/cron
mount --bind "$PWD/spool" /var/spool/cron
test ! -e /etc/crontab || mount --bind /dev/null /etc/crontab
test ! -d /etc/cron.d || mount -t tmpfs none /etc/cron.d
LD_PRELOAD=$1 FAKETIME="@$2 23:59:57" TZ=UTC package/usr/sbin/cron -f -L 0 &
cron=$!
for i in 1 2 3 4 5 6 7 8; do test -e awake || sleep 1; done
sleep 1
kill $cron
wait $cron || true
SH
mkdir -p ran
for night in 2026-01-02 2026-01-04 2026-01-11; do
	for try in 1 2 3 4 5; do
		test -e awake || unshare --mount sh night.sh "$fake" "$night" >/dev/null 2>&1
	done
	day=$(LC_ALL=C date -u -d "$night + 1 day" '+%a %-d %b')
	for line in star range; do test ! -e $line || echo "$day" >>ran/$line; done
	rm -f awake star range
done

cat >go.mod <<'MOD'
module finding

go 1.25

require (
	github.com/hashicorp/cronexpr v1.1.3
	github.com/netresearch/go-cron v0.9.1
	github.com/robfig/cron/v3 v3.0.1
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"
	netresearch "github.com/netresearch/go-cron"
	robfig "github.com/robfig/cron/v3"
)

const line = "0 0 */2 * 1"

func main() {
	r, err := robfig.ParseStandard(line)
	show("robfig", r, err)
	n, err := netresearch.MustNewParser(netresearch.Minute | netresearch.Hour | netresearch.Dom | netresearch.Month |
		netresearch.Dow | netresearch.DowOrDom).Parse(line)
	show("netresearch", n, err)
	c, err := cronexpr.Parse(line)
	show("cronexpr", c, err)
}

// show prints which of three midnights a schedule has.
func show(name string, s interface{ Next(time.Time) time.Time }, err error) {
	if err != nil {
		panic(err)
	}
	var days []string
	for t := s.Next(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)); t.Day() < 13; t = s.Next(t) {
		if slices.Contains([]int{3, 5, 12}, t.Day()) {
			days = append(days, t.Format("Mon 2 Jan"))
		}
	}
	fmt.Printf("%s, %s, from 2026-01-03: %s\n", name, line, strings.Join(days, ", "))
}
GO
{
	echo "cron, 0 0 */2 * 1, from 2026-01-03: $(paste -s -d, ran/star | sed 's/,/, /g')"
	echo "cron, 0 0 1-31/2 * 1, from 2026-01-03: $(paste -s -d, ran/range | sed 's/,/, /g')"
	GOFLAGS=-mod=mod go run .
} >seen
cat seen
cat >want <<'WANT'
cron, 0 0 */2 * 1, from 2026-01-03: Mon 5 Jan
cron, 0 0 1-31/2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
robfig, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
netresearch, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
cronexpr, 0 0 */2 * 1, from 2026-01-03: Sat 3 Jan, Mon 5 Jan, Mon 12 Jan
WANT
cmp seen want
