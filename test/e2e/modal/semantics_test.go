package modal

import (
	"context"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/metadata"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// TestModalSemantics checks that isolation, limits and tunnels are real, which the suites of Modal's SDK do not test.
//
// mission: A6, A11
func TestModalSemantics(t *testing.T) {
	h := modalhost.New(t)
	m := newModalClient(t, h, "semantics")
	t.Run("tunnels", m.tunnels)
	t.Run("a token's key", m.endsWithItsKey)
	t.Run("memory", m.memory)
	t.Run("crashes", m.crashes)
	t.Run("keys", m.keys)
	t.Run("terminal", m.terminal)
	t.Run("snapshots", m.snapshots)
	t.Run("lives", m.lives)
	t.Run("restart", m.restart)
}

type modalClient struct {
	h   *modalhost.Host
	sdk *modal.Client
	app *modal.App
}

// newModalClient is a program that uses Modal's SDK, with a separate app.
func newModalClient(t *testing.T, h *modalhost.Host, name string) *modalClient {
	t.Helper()
	for _, pair := range h.Modal { // the SDK takes its server from the environment alone
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none"))
	client, err := modal.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	app, err := client.Apps.FromName(t.Context(), name, &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	return &modalClient{h, client, app}
}

func (m *modalClient) create(t *testing.T, image string, params *modal.SandboxCreateParams) *modal.Sandbox {
	t.Helper()
	sb, err := m.sdk.Sandboxes.Create(t.Context(), m.app, m.sdk.Images.FromRegistry(image, nil), params)
	if err != nil {
		t.Fatal(err)
	}
	return ending(t, sb)
}

// ending makes a sandbox end with the test.
func ending(t *testing.T, sb *modal.Sandbox) *modal.Sandbox {
	t.Helper()
	t.Cleanup(func() {
		if _, err := sb.Terminate(context.WithoutCancel(t.Context()), nil); err != nil {
			t.Error(err)
		}
		_ = sb.Detach()
	})
	return sb
}

func (m *modalClient) run(t *testing.T, sb *modal.Sandbox, script string) (string, int) {
	t.Helper()
	out, _, code := modaltest.Run(t, sb, nil, "sh", "-c", script+" 2>&1")
	return out, code
}

// Bytes go through tunnels, with TLS and without, and connect tokens open one port and no more.
func (m *modalClient) tunnels(t *testing.T) {
	sb := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{
		Command: []string{"sh", "-c",
			"mkdir -p /www && echo hello >/www/index.html && httpd -p 8081 -h /www && exec httpd -f -p 8080 -h /www"},
		UnencryptedPorts: []int{8081}, EncryptedPorts: []int{8080},
	})
	tunnels, err := sb.Tunnels(t.Context(), time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := tunnels[8081].TCPSocket()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Try(t, func() error {
		return fetched(t, http.DefaultClient, fmt.Sprintf("http://%s:%d/", host, port), "", http.StatusOK, "hello\n")
	})
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	testenv.Try(t, func() error { return fetched(t, insecure, tunnels[8080].URL()+"/", "", http.StatusOK, "hello\n") })
	token, err := sb.CreateConnectToken(t.Context(), &modal.SandboxCreateConnectTokenParams{UserMetadata: "me"})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Try(t, func() error {
		return fetched(t, http.DefaultClient, token.URL+"/", token.Token, http.StatusOK, "hello\n")
	})
	if err := fetched(t, http.DefaultClient, token.URL+"/", token.Token[:len(token.Token)-4]+"AAAA",
		http.StatusUnauthorized, ""); err != nil {
		t.Errorf("with another token: %v", err)
	}
}

// withKey creates a key, and returns its ID, a client without an SDK, and the context of its calls.
func (m *modalClient) withKey(t *testing.T, args ...string) (string, context.Context, pb.ModalClientClient) {
	t.Helper()
	out, err := m.h.Run(append([]string{"key", "create", "-o", "json"}, args...)...)
	var key api.NewKey
	if err == nil {
		err = json.Unmarshal([]byte(out), &key)
	}
	if err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	_, client := plain(m.h, t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-modal-client-type", "9", "x-modal-token-id", key.ID,
		"x-modal-token-secret", key.Secret)
	return key.ID, ctx, client
}

// endsWithItsKey: connections with a connect token are closed when the key that made the token is removed, and no new
// ones begin.
func (m *modalClient) endsWithItsKey(t *testing.T) {
	sb := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{Command: []string{"sh", "-c",
		"mkdir -p /www && echo hello >/www/index.html && exec httpd -f -p 8080 -h /www"}})
	m.run(t, sb,
		`mkdir -p /www/cgi-bin; printf '#!/bin/sh\necho; while echo x; do sleep 0.1; done' >/www/cgi-bin/goes-on; `+
			`chmod 755 /www/cgi-bin/goes-on`)
	key, ctx, client := m.withKey(t, "connects")
	token, err := client.SandboxCreateConnectTokenV2(ctx,
		pb.SandboxCreateConnectTokenRequest_builder{SandboxId: sb.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", token.GetUrl()+"/cgi-bin/goes-on", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token.GetToken())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	if out, err := m.h.Run("key", "rm", key); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("what went on has ended by itself")
	}
	if err := fetched(t, http.DefaultClient, token.GetUrl()+"/", token.GetToken(), http.StatusUnauthorized,
		""); err != nil {
		t.Errorf("after the key was removed: %v", err)
	}
}

func fetched(t *testing.T, c *http.Client, url, token string, code int, want string) error {
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != code || want != "" && string(body) != want {
		return fmt.Errorf("%s %q %v", resp.Status, body, err)
	}
	return nil
}

func (m *modalClient) memory(t *testing.T) {
	sb := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{MemoryMiB: 64, MemoryLimitMiB: 96,
		Command: []string{"sh", "-c", "tail /dev/zero"}})
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 137 {
		t.Errorf("out of memory: ended with %d, %v", code, err)
	}
}

// A directory that was sealed with a key is opened by that key alone, and an image is gone after its time.
// crashes checks that a command's stderr names the process and the signal of a crash, also if the command itself ends
// with 139, and that programs that cannot be started are refused by their names.
func (m *modalClient) crashes(t *testing.T) {
	sb := m.create(t, "alpine:3.21", nil)
	_, said, code := modaltest.Run(t, sb, nil, "sh", "-c", `sh -c 'kill -SEGV $$'; exit 139`)
	if code != 139 ||
		!regexp.MustCompile(`harvest: process (sh|busybox) \(pid [0-9]+\) died of SIGSEGV`).MatchString(said) {
		t.Errorf("it ended with %d, and said %q", code, said)
	}
	for program, want := range map[string]string{"no-such-program": "there is no program",
		"/etc": "cannot be executed"} {
		if _, err := sb.Exec(t.Context(), []string{program}, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), program) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func (m *modalClient) keys(t *testing.T) {
	sb := m.create(t, "alpine:3.21", nil)
	m.run(t, sb, "mkdir -p /d && echo sealed >/d/f")
	img, err := sb.SnapshotDirectory(t.Context(), "/d",
		&modal.SandboxSnapshotDirectoryParams{ExperimentalEncryptionKey: []byte("the first key, of 27 bytes.")})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range [][]byte{nil, []byte("the other key, of 27 bytes.")} {
		if err := sb.MountImage(t.Context(), "/m", img,
			&modal.SandboxMountImageParams{ExperimentalEncryptionKey: key}); err == nil {
			t.Errorf("the key %q opens it", key)
		}
	}
	if err := sb.MountImage(t.Context(), "/m", img,
		&modal.SandboxMountImageParams{ExperimentalEncryptionKey: []byte("the first key, of 27 bytes.")}); err != nil {
		t.Fatal(err)
	}
	if out, _ := m.run(t, sb, "cat /m/f"); out != "sealed\n" {
		t.Errorf("the mounted directory has %q", out)
	}
	short, err := sb.SnapshotFilesystem(t.Context(), &modal.SandboxSnapshotFilesystemParams{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Try(t, func() error {
		if _, err := m.sdk.Images.FromID(t.Context(), short.ImageID, nil); !errors.As(err, &modal.NotFoundError{}) {
			return fmt.Errorf("after its time to live: %v", err)
		}
		return nil
	})
}

func (m *modalClient) lives(t *testing.T) {
	life := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{Timeout: 2 * time.Second})
	idle := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{IdleTimeout: time.Second})
	for name, sb := range map[string]*modal.Sandbox{"lifetime": life, "idle": idle} {
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != 124 {
			t.Errorf("%s: ended with %d, %v", name, code, err)
		}
	}
}

// restart kills the server while a command runs. The next server resumes at the same place.
func (m *modalClient) restart(t *testing.T) {
	url := ""
	for _, pair := range m.h.Modal {
		if value, ok := strings.CutPrefix(pair, "MODAL_SERVER_URL=http://"); ok {
			url = value
		}
	}
	// The command continues for a moment after it has seen the file: the sandbox ends with its command, and a writer of
	// the file would get that error.
	sb := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{Command: []string{"sh", "-c",
		"echo before; while ! [ -e /go ]; do sleep 0.1; done; sleep 2; echo after; exit 3"}})
	line := make([]byte, len("before\n"))
	if _, err := io.ReadFull(sb.Stdout, line); err != nil {
		t.Fatal(err)
	}
	goOn := m.typed(t, sb, url)
	if err := m.h.Up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-m.h.Ended
	m.h.Environ = append(m.h.Environ, "HARVEST_MODAL_LISTEN="+url) // where its clients look for it
	m.h.Start()
	again, err := m.sdk.Sandboxes.FromID(t.Context(), sb.SandboxID, nil)
	if err != nil {
		t.Fatal(err)
	}
	goOn()
	if err := again.Filesystem.WriteText(t.Context(), "", "/go", nil); err != nil {
		t.Fatal(err)
	}
	if code, err := again.Wait(t.Context(), nil); err != nil || code != 3 {
		t.Errorf("ended with %d, %v", code, err)
	}
	if out, err := io.ReadAll(again.Stdout); err != nil || string(out) != "before\nafter\n" {
		t.Errorf("said %q, %v", out, err)
	}
}

//go:embed testdata/modal/sdk.mjs
var javaScript []byte

// TestModalJavaScript checks that Modal's JavaScript SDK works as published in the registry: create, exec, stdin,
// files, snapshots of files and of memory.
//
// mission: A1, A4, A10
func TestModalJavaScript(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.RequireTool(t, "node", "nodejs")
	testenv.RequireTool(t, "npm", "npm")
	h := modalhost.New(t)
	dir := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund",
		"modal@0.11.1")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("Modal's SDK for JavaScript cannot be installed, for which npm must reach a registry: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "sdk.mjs"), javaScript, 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "node", "sdk.mjs")
	run.Dir = dir
	run.Env = append(os.Environ(), h.Modal...)
	out, err := run.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all is well\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
