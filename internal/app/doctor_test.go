package app

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/image"
)

func TestDoctorOnTheAgentImage(t *testing.T) {
	t.Parallel()
	img := image.Image{ID: "img_1", Size: 2 << 30, Parts: []image.Part{{Name: "claude", Version: "2"},
		{Name: "less", Version: "1"}}}
	if f := agentImage(img, nil); !f.OK || f.Needed || f.Remedy != "" || !strings.Contains(f.Detail, "claude 2") ||
		strings.Contains(f.Detail, "less") {
		t.Errorf("a whole one: %+v", f)
	}
	img.Missing = []image.Part{{Name: "volta", Reason: "no such host"}}
	if f := agentImage(img, nil); f.OK || f.Needed || f.Remedy == "" ||
		!strings.Contains(f.Detail, "without volta: no such host") {
		t.Errorf("one that lacks something: %+v", f)
	}
}

// TestDoctorNamesNewerAgents checks that the doctor names versions of agents that are newer than those of the image,
// and that a registry that does not answer, or answers nonsense, changes nothing.
func TestDoctorNamesNewerAgents(t *testing.T) {
	t.Parallel()
	img := image.Image{ID: "img_1", Parts: []image.Part{{Name: "claude", Version: "2.1.9"},
		{Name: "opencode", Version: "1.18.33"}, {Name: "less", Version: "1"}}}
	answers := map[string]string{"/npm/@anthropic-ai%2Fclaude-code-linux-x64/latest": `{"version":"2.1.10"}`,
		"/npm/opencode-linux-x64-baseline/latest": `{"version":"1.18.33"}`}
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.EscapedPath()]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer registry.Close()
	newer := newerAgents(t.Context(), img, registry.URL+"/npm/")
	if f := agentImage(img, newer); !f.OK || f.Remedy != "" ||
		!strings.HasSuffix(f.Detail, "; newer: harvest image build agent --build-arg CLAUDE_CODE=2.1.10") {
		t.Errorf("%+v", f)
	}
	for name, bad := range map[string]string{"not JSON": "<html>", "no version": `{"version":"x; rm -rf /"}`} {
		for path := range answers {
			answers[path] = bad
		}
		if got := newerAgents(t.Context(), img, registry.URL+"/npm"); len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, address := range []string{registry.URL + "/other", "http://" + silent.Addr().String(), "://", ""} {
		if got := newerAgents(t.Context(), img, address); len(got) > 0 {
			t.Errorf("%q: %q", address, got)
		}
	}
}

// TestDoctorNamesNewerReleases checks that the doctor names newer versions of the agents that sandboxes install, beside
// those of Harvest and of the configuration.
func TestDoctorNamesNewerReleases(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "codex-acp") || strings.Contains(r.URL.Path, "gemini") {
			_, _ = io.WriteString(w, `{"version":"99.1.0"}`)
			return
		}
		_, _ = io.WriteString(w, `{"version":"0.0.1"}`)
	}))
	defer registry.Close()
	if got := newerProfiles(t.Context(), nil, registry.URL); !slices.Equal(got, []string{"codex=99.1.0",
		"gemini=99.1.0"}) {
		t.Errorf("%q", got)
	}
	if got := newerProfiles(t.Context(), []string{"codex=99.1.0", "gemini=99.0.0"}, registry.URL); !slices.Equal(got,
		[]string{"gemini=99.1.0"}) {
		t.Errorf("%q", got)
	}
	if got := newerProfiles(t.Context(), nil, "://"); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if f := dataDirectory(dir); !f.OK || !strings.Contains(f.Detail, dir) {
		t.Errorf("a good data directory: %+v", f)
	}
	if f := dataDirectory(filepath.Join(dir, "a", "b")); !f.OK || !strings.Contains(f.Detail, "not exist yet") {
		t.Errorf("one to be made: %+v", f)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if f := dataDirectory(dir); f.OK || !f.Needed || f.Remedy == "" {
			t.Errorf("somebody else's: %+v", f)
		}
	}
	if f := diskSpace(dir); f.Detail == "" || f.OK == (f.Remedy != "") {
		t.Errorf("disk space: %+v", f)
	}
	if f := tool("no-such-tool", "some-package", "it does something"); f.OK || f.Fix != "some-package" ||
		f.Remedy == "" {
		t.Errorf("a tool that is missing: %+v", f)
	}
	if f := tool("sh", "dash", "shell"); !f.OK || f.Fix != "" {
		t.Errorf("a tool that is there: %+v", f)
	}
	if f := mappings("65530\n"); f.OK || f.Needed || !strings.Contains(f.Remedy, "vm.max_map_count") {
		t.Errorf("few mappings: %+v", f)
	}
	if f := mappings("1048576\n"); !f.OK || f.Remedy != "" || f.Detail != "1048576 per process" {
		t.Errorf("enough mappings: %+v", f)
	}
	if !grants("root:1:2\nme:100000:65536\n", "me", "1000") || grants("me-too:1:2\nme\n", "me") ||
		!grants("1000:1:2", "me", "1000") {
		t.Error("grants reads /etc/subuid wrongly")
	}
	if f := machine(); !f.OK || !strings.Contains(f.Detail, "Linux") {
		t.Errorf("machine: %+v", f)
	}
	kubeconfig := filepath.Join(dir, "missing")
	pods := config.Kubernetes{Kubeconfig: kubeconfig}
	if all := cluster(t.Context(), config.Config{Kubernetes: pods}); len(all) != 1 || all[0].OK ||
		!all[0].Needed || all[0].Remedy == "" || !strings.Contains(all[0].Detail, kubeconfig) {
		t.Errorf("a cluster without a configuration: %+v", all)
	}
	for _, has := range []bool{true, false} {
		f := bucketOfS3(config.S3{Bucket: "files"}, func(name string) bool { return has && name == "aws" })
		if f.OK != has || f.Needed || (f.Remedy == "") != has || !strings.Contains(f.Detail, "bucket files") {
			t.Errorf("S3: %+v", f)
		}
	}
	for keys, want := range map[string]bool{
		"": false, "AWS_ACCESS_KEY_ID": false, "AWS_REGION AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY": true,
		"AWS_WEB_IDENTITY_TOKEN_FILE":              false,
		"AWS_WEB_IDENTITY_TOKEN_FILE AWS_ROLE_ARN": true, "AWS_S3_FROM_MACHINE": true,
	} {
		if namesCredentials(strings.Fields(keys)) != want {
			t.Errorf("a secret with %q has credentials: %t", keys, !want)
		}
	}
}
