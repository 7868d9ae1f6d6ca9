package config

import (
	"fmt"
	"log/slog"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Secret is a value that is never printed: fmt, JSON, YAML and logs show logf.Hidden instead. Only Reveal
// returns it.
type Secret string

// Reveal returns the value itself, for the place that uses it.
func (s Secret) Reveal() string { return string(s) }

// String returns logf.Hidden, or "" if there is no value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return logf.Hidden
}

// Format writes String for every verb, so that no verb shows the bytes.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText returns String for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
