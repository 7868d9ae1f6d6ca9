package server

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// A client that oapi-codegen generates from the OpenAPI document works against the real server.
// mission: F1
func TestGeneratedClient(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	generator := testenv.Peer(t, "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen")
	h := host.New(t, "fake", nil)
	url := h.Up()
	key := h.Must("key", "create", "generated", "--quiet")
	resp, err := http.Get(url + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	document, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	// The module of its dependencies, with the generated package in it.
	peers, module := filepath.Join("..", "..", "..", "tools", "peers"), t.TempDir()
	for name, from := range map[string]string{"go.mod": peers, "go.sum": peers, "generated/main.go": "testdata"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(module, name), data)
	}
	testenv.WriteFile(t, filepath.Join(module, "api.json"), document)
	run := func(name string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "HARVEST_URL="+url, "HARVEST_API_KEY="+key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", name, err, out, h.Log())
		}
		return out
	}
	testenv.WriteFile(t, filepath.Join(module, "generated", "api", "api.go"),
		run(generator, "-generate", "types,client", "-package", "api", "api.json"))
	run("go", "build", "-o", "program", "./generated")
	if out := run(filepath.Join(module, "program")); !bytes.Contains(out, []byte("created, ran and deleted sbx_")) {
		t.Errorf("it says %s", out)
	}
}
