package images

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

// TestDetailsShowTheConfiguration checks that the details of an image have the configuration of its containers and its
// history.
//
// mission: B2
func TestDetailsShowTheConfiguration(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, row := range Details(api.Image{ID: "img_1", User: "u", Workdir: "/w", Entrypoint: []string{"e", "two words"},
		Command: []string{"c"}, Env: map[string]string{"A": "b"}, Labels: map[string]string{"l": "m"},
		Ports: []string{"80/tcp", "53/udp"}, Volumes: []string{"/v"}, StopSignal: "SIGINT",
		HealthCheck: &api.HealthCheck{Test: []string{"CMD", "x"}}, OnBuild: []string{"RUN y"},
		History: []api.History{{CreatedBy: "RUN one"}, {CreatedBy: "RUN two"}}}).Rows {
		all.WriteString(strings.Join(row, ": ") + "\n")
	}
	for _, want := range []string{"user: u", "workdir: /w", `entrypoint: ["e","two words"]`, `command: ["c"]`,
		"env: A=b",
		"label: l=m", "ports: 80/tcp 53/udp", "volumes: /v", "stop signal: SIGINT", `health check: ["CMD","x"]`,
		"on build: RUN y", "history: RUN one", "history: RUN two"} {
		if !strings.Contains(all.String(), want+"\n") {
			t.Errorf("%q is missing in\n%s", want, all.String())
		}
	}
}
