package logf

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

// record writes to a separate JSON log and returns the records. The log is global: tests that use it are not parallel.
func record(t *testing.T, level slog.Level, do func(ctx context.Context)) []map[string]any {
	t.Helper()
	var buf bytes.Buffer
	before, beforeDefault := handler.Load(), slog.Default()
	Setup(&buf, level, true)
	defer func() { handler.Store(before); slog.SetDefault(beforeDefault) }()
	do(t.Context())
	var records []map[string]any
	for line := range strings.Lines(buf.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q is not a JSON record: %v", line, err)
		}
		records = append(records, r)
	}
	return records
}

// mission: F6, 10.2
func TestLevels(t *testing.T) {
	records := record(t, slog.LevelWarn, func(ctx context.Context) {
		Debugf(ctx, "debug")
		Infof(ctx, "info")
		Warnf(ctx, "warn %d", 1)
		Errorf(ctx, "error %s", "two")
	})
	if len(records) != 2 || records[0]["msg"] != "warn 1" || records[1]["msg"] != "error two" {
		t.Errorf("records at level warn: %v", records)
	}
	if records[0]["level"] != "WARN" || records[1]["level"] != "ERROR" {
		t.Errorf("levels: %v", records)
	}
	if n := len(record(t, slog.LevelDebug, func(ctx context.Context) { Debugf(ctx, "x"); Infof(ctx, "y") })); n != 2 {
		t.Errorf("at level debug %d records were written, want 2", n)
	}
}

// mission: F6, 10.5
func TestAttributesComeFromTheContext(t *testing.T) {
	records := record(t, slog.LevelInfo, func(ctx context.Context) {
		outer := With(ctx, "account", "a1", "sandbox_id", "sbx_1")
		inner := With(outer, "sandbox_id", "sbx_2", "request_id", 7)
		Infof(inner, "inner")
		Infof(outer, "outer")
		Infof(ctx, "bare")
	})
	if r := records[0]; r["account"] != "a1" || r["sandbox_id"] != "sbx_2" || r["request_id"] != float64(7) {
		t.Errorf("inner: %v", r)
	}
	if r := records[1]; r["sandbox_id"] != "sbx_1" || r["request_id"] != nil {
		t.Errorf("outer was changed by a context below it: %v", r)
	}
	if r := records[2]; r["account"] != nil {
		t.Errorf("bare: %v", r)
	}
}

func TestSiblingsDoNotShareAttributes(t *testing.T) {
	records := record(t, slog.LevelInfo, func(ctx context.Context) {
		parent := With(ctx, "a", 1)
		left, right := With(parent, "b", "left"), With(parent, "b", "right")
		Infof(left, "left")
		Infof(right, "right")
	})
	if records[0]["b"] != "left" || records[1]["b"] != "right" {
		t.Errorf("records: %v", records)
	}
}

type holder struct{ token string }

func (h holder) String() string { return "holder of " + h.token }

// mission: F6
func TestSecretsAreRedactedEverywhere(t *testing.T) {
	const secret = `pa"ss/wörd+&1`
	Redact(secret)
	var text bytes.Buffer
	for _, asJSON := range []bool{true, false} {
		before, beforeDefault := handler.Load(), slog.Default()
		Setup(&text, slog.LevelInfo, asJSON)
		ctx := With(t.Context(), "string", "x"+secret, "error", fmt.Errorf("cannot use %s", secret), "stringer",
			holder{secret},
			"bytes", []byte(secret), "struct", struct{ A, B string }{"a", secret}, slog.Group("group", "in", secret))
		Infof(ctx, "message with %s", secret)
		Errorf(ctx, "quoted %q, basic %s, url %s", secret,
			base64.StdEncoding.EncodeToString([]byte("user:"+secret)),
			"https://example.org/?q="+url.QueryEscape(secret))
		slog.Info("through slog " + secret)
		handler.Store(before)
		slog.SetDefault(beforeDefault)
	}
	for _, form := range forms(secret) {
		if strings.Contains(text.String(), form) {
			t.Errorf("%q is in the log:\n%s", form, text.String())
		}
	}
	if n := strings.Count(text.String(), Hidden); n < 20 {
		t.Errorf("%d values were redacted, want at least 20:\n%s", n, text.String())
	}
	if !strings.Contains(text.String(), "message with "+Hidden) {
		t.Errorf("the rest of the message is gone:\n%s", text.String())
	}
}

func TestRedacted(t *testing.T) {
	random := strings.Repeat("a2", 26)
	Redact("sk-ant-0123456789", "short", "multi-line-one\nmulti-line-two\n", "sk-ant-0123456789-longer")
	for in, want := range map[string]string{
		"nothing":                        "nothing",
		"short stays":                    "short stays",
		"key sk-ant-0123456789.":         "key [redacted].",
		"key sk-ant-0123456789-longer.":  "key [redacted].",
		"only multi-line-two":            "only [redacted]",
		"multi-line-one\nmulti-line-two": "[redacted]",
		"hv_" + random + ".":             "[redacted].",
		"hvs_" + random + " hvl_" + random + " hvp_" + random: "[redacted] [redacted] [redacted]",
		"Bearer hva_" + random + "\nhvr_" + random + random:   "Bearer [redacted]\n[redacted]",
	} {
		if got := Redacted(in); got != want {
			t.Errorf("Redacted(%q) = %q, want %q", in, got, want)
		}
	}
}

// Not parallel: it looks at all registrations.
func TestRegistrationsEnd(t *testing.T) {
	const value = "a value that ends"
	first := Redact(value, "another value", "tiny")
	with := len(secrets.forms)
	replacer := secrets.replacer.Load()
	second := Redact(value, "tiny")
	if secrets.replacer.Load() != replacer || len(secrets.forms) != with {
		t.Error("a value that is known already made everything anew")
	}
	first()
	first() // counts once
	if got := Redacted("x " + value + ", another value"); got != "x "+Hidden+", another value" {
		t.Errorf("after the first release: %q", got)
	}
	second()
	if got := Redacted(value); got != value {
		t.Errorf("after the last release: %q", got)
	}
}

func FuzzRedactedHidesBase64AtAnyOffset(f *testing.F) {
	f.Add("x", "a secret value", "tail")
	f.Add("", "\xff\xfe\xfd\xfc\xfb\xfa", "")
	f.Add("ab", "??>>??>>", "z")
	f.Fuzz(func(t *testing.T, before, value, after string) {
		if len(strings.TrimSpace(value)) < 8 || strings.TrimSpace(value) != value {
			t.Skip("only values of 8 bytes and more without space around them are promised to be found in other " +
				"encodings")
		}
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString([]byte(before + value + after))
			part := base64At(enc, value, len(before)%3)
			if enc == base64.StdEncoding {
				part = base64At(base64.RawStdEncoding, value, len(before)%3)
			}
			if !strings.Contains(text, part) || len(part) < len(value) {
				t.Errorf("%q does not contain %q", text, part)
			}
		}
	})
}

func TestDefaultLogIsStderr(t *testing.T) {
	before := handler.Swap(nil)
	defer handler.Store(before)
	if !current().Enabled(t.Context(), slog.LevelInfo) || current().Enabled(t.Context(), slog.LevelDebug) {
		t.Error("the log without Setup is not at level info")
	}
}
