package config

import (
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/docker/go-units"
)

// value reads and writes one field. The error of Set contains the remedy.
type value interface {
	Set(text string) error
	String() string
}

type (
	textValue     string
	numberValue   float64
	countValue    int
	sizeValue     int64
	durationValue time.Duration
	levelValue    slog.Level
	boolValue     bool
	listValue     []string
	pricesValue   map[string]float64
	secretValue   Secret
)

// valueOf returns the value of a field, which must point to one of these types.
func valueOf(field any) value {
	switch v := field.(type) {
	case *string:
		return (*textValue)(v)
	case *float64:
		return (*numberValue)(v)
	case *int:
		return (*countValue)(v)
	case *int64:
		return (*sizeValue)(v)
	case *time.Duration:
		return (*durationValue)(v)
	case *slog.Level:
		return (*levelValue)(v)
	case *bool:
		return (*boolValue)(v)
	case *[]string:
		return (*listValue)(v)
	case *map[string]float64:
		return (*pricesValue)(v)
	}
	return (*secretValue)(field.(*Secret))
}

func (v *textValue) Set(text string) error { *v = textValue(text); return nil }
func (v *textValue) String() string        { return string(*v) }

func (v *secretValue) Set(text string) error { *v = secretValue(text); return nil }
func (v *secretValue) String() string        { return Secret(*v).String() }

func (v *boolValue) Set(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return errors.Newf(errors.Invalid, "write true or false")
	}
	*v = boolValue(b)
	return nil
}

func (v *boolValue) String() string { return strconv.FormatBool(bool(*v)) }

func (v *listValue) Set(text string) error {
	*v = nil
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			*v = append(*v, one)
		}
	}
	return nil
}

func (v *listValue) String() string { return strings.Join(*v, ",") }

func (v *pricesValue) Set(text string) error {
	var pairs listValue
	if err := pairs.Set(text); err != nil {
		return err
	}
	*v = pricesValue{}
	for _, pair := range pairs {
		name, price, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseFloat(strings.TrimSpace(price), 64)
		if name = strings.TrimSpace(name); name == "" || err != nil {
			return errors.Newf(errors.Invalid, "write names with their prices, such as T4=0.000164,L4=0.000222")
		}
		(*v)[name] = n
	}
	return nil
}

func (v *pricesValue) String() string {
	var pairs listValue
	for _, name := range slices.Sorted(maps.Keys(*v)) {
		price := numberValue((*v)[name])
		pairs = append(pairs, name+"="+price.String())
	}
	return pairs.String()
}

func (v *numberValue) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return errors.Newf(errors.Invalid, "write a number, such as 0.5")
	}
	*v = numberValue(n)
	return nil
}

func (v *numberValue) String() string { return strconv.FormatFloat(float64(*v), 'f', -1, 64) }

func (v *countValue) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return errors.Newf(errors.Invalid, "write a whole number, such as 100")
	}
	*v = countValue(n)
	return nil
}

func (v *countValue) String() string { return strconv.Itoa(int(*v)) }

func (v *sizeValue) Set(text string) error {
	n, err := ParseSize(text)
	if err != nil {
		return err
	}
	*v = sizeValue(n)
	return nil
}

func (v *sizeValue) String() string { return FormatSize(int64(*v)) }

func (v *durationValue) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.Newf(errors.Invalid, "write a duration, such as 90s, 30m or 24h")
	}
	*v = durationValue(d)
	return nil
}

func (v *durationValue) String() string {
	text := time.Duration(*v).String()
	// Write 24h instead of 24h0m0s.
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (v *levelValue) Set(text string) error {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(text, level.String()) {
			*v = levelValue(level)
			return nil
		}
	}
	return errors.Newf(errors.Invalid, "write debug, info, warn or error")
}

func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }

// ParseSize parses a number of bytes in common notation: 1048576, 512k, 2GiB or 2GB, all in powers of 1024.
func ParseSize(text string) (int64, error) {
	n, err := units.RAMInBytes(text)
	// An overflow gives a negative number or the largest one, depending on the machine.
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0, errors.Newf(errors.Invalid, "write a size, such as 512MiB or 2GiB")
	}
	return n, nil
}

// FormatSize formats a number of bytes so that ParseSize returns the same number.
func FormatSize(n int64) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 5 {
		n /= 1024
		unit++
	}
	return strconv.FormatInt(n, 10) + []string{"", "KiB", "MiB", "GiB", "TiB", "PiB"}[unit]
}
