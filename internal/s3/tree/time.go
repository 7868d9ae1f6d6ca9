package tree

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Time is the mtime of a file, with the precision and range of file systems. Equal times are equal
// values.
type Time struct {
	Sec  int64 // since 1970
	Nsec int32 // added to Sec: 0 to 999,999,999, also before 1970
}

// At returns t as a Time.
func At(t time.Time) Time { return Time{t.Unix(), int32(t.Nanosecond())} }

// Nano returns the time ns nanoseconds after 1970.
func Nano(ns int64) Time {
	t := Time{ns / 1e9, int32(ns % 1e9)}
	if t.Nsec < 0 {
		t.Sec, t.Nsec = t.Sec-1, t.Nsec+1e9
	}
	return t
}

// Now returns the current time.
func Now() Time { return At(time.Now()) }

// Std returns t as a time.Time.
func (t Time) Std() time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// After reports whether t is later than u.
func (t Time) After(u Time) bool { return t.Sec > u.Sec || t.Sec == u.Sec && t.Nsec > u.Nsec }

// Timespec returns the time in the form of system calls.
func (t Time) Timespec() unix.Timespec { return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)} }

// Farthest bounds the seconds before or after 1970 of a valid time: some 285 million years.
const Farthest = 1 << 53

// Valid reports whether the time is within the limits of Farthest.
func (t Time) Valid() bool {
	return t.Sec > -Farthest && t.Sec < Farthest && t.Nsec >= 0 && t.Nsec < 1e9
}

// UnixNano returns the nanoseconds since 1970. If they do not fit, it returns the nearest number and false.
func (t Time) UnixNano() (int64, bool) {
	switch {
	case t.Sec >= math.MaxInt64/1_000_000_000:
		return math.MaxInt64, false
	case t.Sec < math.MinInt64/1_000_000_000:
		return math.MinInt64, false
	}
	return t.Sec*1e9 + int64(t.Nsec), true
}

// parts returns the sign and the absolute value of the time since 1970.
func (t Time) parts() (sign string, sec int64, nsec int32) {
	if t.Sec >= 0 {
		return "", t.Sec, t.Nsec
	}
	if t.Nsec == 0 {
		return "-", -t.Sec, 0
	}
	return "-", -t.Sec - 1, 1e9 - t.Nsec
}

// Decimal formats the seconds since 1970 with nine decimals. As with rclone, the sign applies to
// the whole number: half a second before 1970 is "-0.500000000".
func (t Time) Decimal() string {
	sign, sec, nsec := t.parts()
	return fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
}

// Nanoseconds formats the nanoseconds since 1970, also beyond 64 bits.
func (t Time) Nanoseconds() string {
	sign, sec, nsec := t.parts()
	if sec == 0 {
		if nsec == 0 {
			sign = ""
		}
		return fmt.Sprintf("%s%d", sign, nsec)
	}
	return fmt.Sprintf("%s%d%09d", sign, sec, nsec)
}

// ParseTime parses the output of nanoseconds followed by "ns", or seconds with decimals.
func ParseTime(text string) (Time, bool) {
	sign, rest := "", text
	if after, ok := strings.CutPrefix(text, "-"); ok {
		sign, rest = "-", after
	}
	whole, frac, _ := strings.Cut(rest, ".")
	if ns, ok := strings.CutSuffix(rest, "ns"); ok {
		ns = strings.Repeat("0", max(0, 10-len(ns))) + ns
		if len(ns) > 30 || rest == "ns" {
			return Time{}, false
		}
		whole, frac = ns[:len(ns)-9], ns[len(ns)-9:]
	}
	sec, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || sec >= Farthest {
		return Time{}, false
	}
	nsec, err := strconv.ParseUint((frac + "000000000")[:9], 10, 32)
	if err != nil {
		return Time{}, false
	}
	t := Time{int64(sec), int32(nsec)}
	if sign != "" {
		if t = (Time{-t.Sec, t.Nsec}); t.Nsec > 0 {
			t = Time{t.Sec - 1, 1e9 - t.Nsec}
		}
	}
	return t, true
}
