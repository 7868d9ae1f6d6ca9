package mcp

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// user is a client of the tools, with the official SDK.
type user struct {
	t       *testing.T
	session *sdk.ClientSession
	cmd     *exec.Cmd // harvest mcp; nil over HTTP

	mu    sync.Mutex
	heard []string // guarded by mu: messages of progress
}

func (u *user) connect(transport sdk.Transport) error {
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.heard = append(u.heard, req.Params.Message)
		}})
	var err error
	u.session, err = client.Connect(u.t.Context(), transport, nil)
	return err
}

// overStdio starts harvest mcp in a directory.
func overStdio(t *testing.T, h *host.Host, dir string, flags ...string) *user {
	t.Helper()
	u := &user{t: t, cmd: h.Command(context.WithoutCancel(t.Context()), append([]string{"mcp"}, flags...)...)}
	u.cmd.Dir, u.cmd.Stderr = dir, os.Stderr
	if err := u.connect(&sdk.CommandTransport{Command: u.cmd}); err != nil {
		t.Fatalf("%v\n%s", err, h.Log())
	}
	t.Cleanup(func() { _ = u.session.Close() })
	return u
}

// bearer adds a key to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// overHTTP connects to the address /mcp of a server.
func overHTTP(t *testing.T, url, key string) (*user, error) {
	t.Helper()
	u := &user{t: t}
	err := u.connect(&sdk.StreamableClientTransport{Endpoint: url + "/mcp",
		HTTPClient: &http.Client{Transport: bearer(key)}, MaxRetries: -1})
	if err == nil {
		t.Cleanup(func() { _ = u.session.Close() })
	}
	return u, err
}

type args map[string]any

// call calls a tool, and returns its text and whether it failed.
func (u *user) call(tool string, in args) (text string, failed bool) {
	u.t.Helper()
	params := &sdk.CallToolParams{Name: tool, Arguments: in}
	params.SetProgressToken(tool)
	res, err := u.session.CallTool(u.t.Context(), params)
	if err != nil {
		u.t.Fatalf("%s %v: %v", tool, in, err)
	}
	var b strings.Builder
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	return b.String(), res.IsError
}

// must calls a tool, which must succeed, and checks that its text has words.
func (u *user) must(tool string, in args, words ...string) string {
	u.t.Helper()
	text, failed := u.call(tool, in)
	if failed {
		u.t.Errorf("%s %v failed: %s", tool, in, text)
	}
	u.has(tool, text, words)
	return text
}

// fails calls a tool, which must fail, and checks that its text has words and a next step.
func (u *user) fails(tool string, in args, words ...string) string {
	u.t.Helper()
	text, failed := u.call(tool, in)
	if !failed {
		u.t.Errorf("%s %v did not fail: %s", tool, in, text)
	}
	u.has(tool, text, append(words, "next: "))
	return text
}

func (u *user) has(tool, text string, words []string) {
	u.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			u.t.Errorf("%s: %q is missing in: %s", tool, word, short(text))
		}
	}
}

// short returns the ends of a text.
func short(text string) string {
	if len(text) > 2000 {
		return text[:1000] + " … " + text[len(text)-1000:]
	}
	return text
}

// project makes a repository with uncommitted changes.
func project(t *testing.T, h *host.Host) string {
	t.Helper()
	dir := h.Project()
	testenv.WriteFile(t, filepath.Join(dir, "README.md"), []byte("# A changed project\n"))
	testenv.WriteFile(t, filepath.Join(dir, "notes.txt"), []byte("walnut\n"))
	return dir
}

// git runs git in a directory, and returns its output.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}
