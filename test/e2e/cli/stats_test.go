package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// sandboxUse is an element of the output of `sandbox stats -o json`.
type sandboxUse struct {
	ID   string  `json:"id"`
	Name string  `json:"name"`
	CPU  float64 `json:"cpu_cores"`
	api.Used
}

// TestSandboxStats checks that a sandbox's usage is shown while it works and after its end, on the command line, over
// HTTP and to Prometheus.
// mission: A12
func TestSandboxStats(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_USAGE_INTERVAL", "1s")
	url := h.Up()
	key := h.Must("key", "create", "reader", "--quiet")
	id := h.Must("sandbox", "create", "--name", "dev")
	h.Must("sandbox", "exec", "--detach", "dev", "--", "python3", "-c",
		"b = bytearray(b'x') * (100 << 20)\nwhile True: pass")
	stats := func() (all []sandboxUse) {
		t.Helper()
		out := h.Must("sandbox", "stats", "dev", "-o", "json")
		if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || all[0].ID != id ||
			all[0].Name != "dev" {
			t.Fatalf("it says %s: %v", out, err)
		}
		return all
	}
	var busy sandboxUse
	testenv.Try(t, func() error {
		busy = stats()[0]
		n := len(busy.Samples)
		if n <= 3 || busy.CPU <= 0.05 || busy.Samples[n-1].CPU <= 0.5 || busy.Samples[n-1].Memory <= 90<<20 {
			return errors.Errorf("a busy command that holds 100 MiB: %+v", busy)
		}
		return nil
	})
	if table := h.Must("sandbox", "stats"); !strings.Contains(table, "SANDBOX") || !strings.Contains(table, id) ||
		!strings.Contains(table, "MiB") {
		t.Errorf("the table is\n%s", table)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := h.Command(ctx, "sandbox", "stats", "dev", "--watch", "-o", "json")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 2 {
		var one sandboxUse
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &one) != nil || one.ID != id || len(one.Samples) != 1 {
			t.Errorf("--watch says %q: %v", lines.Text(), lines.Err())
		}
	}
	cancel()
	_ = watch.Wait() // it was killed

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), "\nharvest_used_memory_bytes 1.") ||
		strings.Contains(string(text), "\nharvest_used_cpu_seconds_total 0\n") {
		t.Errorf("the metrics are %v\n%s", err, text)
	}

	h.Must("sandbox", "rm", "dev")
	var after []sandboxUse
	if err := json.Unmarshal([]byte(h.Must("sandbox", "stats", id, "-o", "json")), &after); err != nil {
		t.Fatal(err)
	}
	if last := len(after[0].Samples) - 1; last < 3 ||
		after[0].Samples[last].CPU < busy.Samples[len(busy.Samples)-1].CPU || after[0].PeakMemory < 90<<20 {
		t.Errorf("after the end: %+v", after)
	}
	if out := h.Must("sandbox", "stats", "-o", "json"); out != "[]" {
		t.Errorf("of none: %s", out)
	}
	if _, stderr, code := h.Run("sandbox", "stats", "nobody"); code != 4 || !strings.Contains(stderr, "nobody") {
		t.Errorf("of one that never was: code %d, %s", code, stderr)
	}
}
