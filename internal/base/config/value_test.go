package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "1048576": 1 << 20, "512k": 512 << 10, "2GiB": 2 << 30,
		"2GB": 2 << 30, "2g": 2 << 30, "1.5 GiB": 3 << 29} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "lots", "2 GiB of it", "99999999999999999999", "NaN", "0x10"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", text, got)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 2 << 30: "2GiB",
		3 << 29: "1536MiB", 1 << 60: "1024PiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestPrices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "T4=0.000164": "T4=0.000164",
		" L4 = 1 , H100!=0,": "H100!=0,L4=1", "a=1,a=2": "a=2"} {
		v := pricesValue{"before": 1}
		if err := v.Set(text); err != nil || v.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, v.String(), err, want)
		}
	}
	for _, text := range []string{"T4", "=1", "T4=", "T4=cheap", "T4=1 L4=2"} {
		if err := (&pricesValue{}).Set(text); err == nil || !strings.Contains(err.Error(), "T4=0.000164") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, price := range []string{"T4=-1", "T4=1,L4=NaN", "T4=Inf"} {
		_, err := Load("", func(name string) string {
			return map[string]string{"HARVEST_PRICES_GPU_SECOND": price, "HARVEST_DATA": t.TempDir()}[name]
		})
		if err == nil || !strings.Contains(err.Error(), "prices.gpu_second") {
			t.Errorf("%s: %v", price, err)
		}
	}
	for kind, price := range Default(func(string) string { return "" }).Prices.GPUSecond {
		if price <= 0 || price > 0.01 {
			t.Errorf("%s costs %v a second", kind, price)
		}
	}
}

func FuzzSizesReadAsWritten(f *testing.F) {
	for _, n := range []int64{0, 1, 1024, 1<<40 + 1024, 1<<53 - 1} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		if n < 0 || n > 1<<53 {
			t.Skip("sizes are read through floating point numbers, which are exact to 2^53")
		}
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Errorf("%d is written %s and read as %d, %v", n, FormatSize(n), got, err)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"1", "1.5GiB", ".", "1 k", "9e9", "", "inf", "99999999999PiB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseSize(text); err == nil && (n < 0 || n == math.MaxInt64) {
			t.Errorf("ParseSize(%q) = %d", text, n)
		}
	})
}

// mission: F6
func TestSecretPrintsNowhere(t *testing.T) {
	t.Parallel()
	const value = "hunter22"
	secret := struct {
		Token Secret
		Ptr   *Secret
	}{Token: value}
	secret.Ptr = &secret.Token
	texts := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s"} {
		texts[verb] = fmt.Sprintf(verb+" "+verb, secret.Token, secret)
	}
	j, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	texts["JSON"], texts["YAML"] = string(j), string(y)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", secret.Token, "all", secret)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", secret.Token, "all", secret)
	texts["slog"] = log.String()
	for name, text := range texts {
		if strings.Contains(text, value) || strings.Contains(text, "68756e746572") ||
			!strings.Contains(text, "[redacted]") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if Secret("").String() != "" || secret.Token.Reveal() != value {
		t.Error("an empty secret is shown as one, or Reveal does not")
	}
}
