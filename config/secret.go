package config

import (
	"fmt"
	"log/slog"

	"github.com/RelevanceAI/harvest/logf"
)

// Secret is a value that nothing prints: fmt, JSON, YAML and logs show logf.Hidden in its place. Only Reveal returns it.
type Secret string

// Reveal returns the value itself, for the one place that uses it.
func (s Secret) Reveal() string { return string(s) }

// String returns logf.Hidden, or "" if there is no value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return logf.Hidden
}

// Format writes String for every verb, so that none shows the bytes.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText is what JSON and YAML write.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is what slog writes.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
