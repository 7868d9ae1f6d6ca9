package modal_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// TestWorkingDirectory checks that a working directory that the image lacks is made, and that relative paths of the
// older file API count from it.
func TestWorkingDirectory(t *testing.T) {
	w := newWorld(t)
	const dir = "/tmp/new/work"
	sb := w.create(&modal.SandboxCreateParams{Workdir: dir})
	if out := w.output(sb, "pwd"); !strings.HasSuffix(out, dir+"\n") { // the fake's root is a directory
		t.Errorf("commands start in %q", out)
	}
	_, task := modaltest.Router(w.ctx(), t, w.control, sb.SandboxID)
	fd := w.openFile(task, "test.txt", "w")
	if code := w.writeFile(task, fd, "hello"); code != 0 {
		t.Errorf("write: %d", code)
	}
	w.closeFile(task, fd)
	if _, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileMkdirRequest: pb.ContainerFileMkdirRequest_builder{Path: "sub"}.Build()}); code != 0 {
		t.Errorf("mkdir: %d", code)
	}
	if out := w.output(sb, "sh", "-c", "cat test.txt && ls -d sub"); out != "hellosub\n" {
		t.Errorf("the directory has %q", out)
	}
	if list, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileLsRequest: pb.ContainerFileLsRequest_builder{Path: "."}.Build()}); code != 0 ||
		!strings.Contains(list, "test.txt") {
		t.Errorf("ls: %q, %d", list, code)
	}
	if _, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileRmRequest: pb.ContainerFileRmRequest_builder{Path: "test.txt"}.Build()}); code != 0 {
		t.Errorf("rm: %d", code)
	}
}

// app returns an app for sandboxes.
func (w *world) app() *modal.App {
	w.t.Helper()
	app, err := w.sdk.Apps.FromName(w.t.Context(), "app", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return app
}

// fetch requests a URL with the roots of an authority.
func fetch(t *testing.T, url, authority string) (string, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestTunnels checks that every tunnel has a TLS side with a certificate of the installation's authority, which the
// next server keeps with the addresses, and that unencrypted ports also have a side without.
func TestTunnels(t *testing.T) {
	w := newWorld(t)
	w.ports = true
	w.reopen()
	inside := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, "hello")
	}))
	defer inside.Close()
	_, text, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{UnencryptedPorts: []int{port}})
	authority := w.server.Authority()
	urls := func() (all []string) {
		t.Helper()
		got, err := w.control.SandboxGetTunnelsV2(w.ctx(),
			pb.SandboxGetTunnelsRequest_builder{SandboxId: sb.SandboxID}.Build())
		if err != nil || len(got.GetTunnels()) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		tunnel := got.GetTunnels()[0]
		return []string{fmt.Sprintf("https://%s:%d", tunnel.GetHost(), tunnel.GetPort()),
			fmt.Sprintf("http://%s:%d", tunnel.GetUnencryptedHost(), tunnel.GetUnencryptedPort())}
	}
	before := urls()
	for _, url := range before {
		if body, err := fetch(t, url, authority); err != nil || body != "hello" {
			t.Errorf("%s: %q, %v", url, body, err)
		}
	}
	w.reopen()
	if now := urls(); strings.Join(now, " ") != strings.Join(before, " ") {
		t.Errorf("the next server has the tunnels %v, not %v", now, before)
	}
	_, err = fetch(t, before[0], authority) // the fake has no ports after a restart
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		t.Errorf("the certificate of the next server: %v", err)
	}
}

// TestMissingKeysOfSecrets checks the code by which SDKs recognize a secret that lacks a key.
func TestMissingKeysOfSecrets(t *testing.T) {
	w := newWorld(t)
	ask := func(keys ...string) error {
		return second(w.control.SecretGetOrCreate(w.ctx(), pb.SecretGetOrCreateRequest_builder{DeploymentName: "keys",
			EnvDict: map[string]string{"A": "1"}, ObjectCreationType: ifMissing, RequiredKeys: keys}.Build()))
	}
	if err := ask("A"); err != nil {
		t.Fatal(err)
	}
	if err := ask("A", "B", "C"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "Secret is missing key(s): B, C") {
		t.Errorf("%v", err)
	}
}

// TestProgramsWaitAtLimits checks that an unmodified program waits for the end of another sandbox.
func TestProgramsWaitAtLimits(t *testing.T) {
	w := newWorld(t)
	w.quotas = reserve.Quotas{Sandboxes: 1}
	w.reopen()
	first := w.create(nil)
	app, image := w.app(), w.sdk.Images.FromRegistry("base", nil)
	created := make(chan error, 1)
	go func() { created <- second(w.sdk.Sandboxes.Create(t.Context(), app, image, nil)) }()
	select {
	case err := <-created:
		t.Fatalf("the second sandbox does not wait: %v", err)
	case <-time.After(time.Second):
	}
	if _, err := first.Terminate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Errorf("after the end of the first sandbox: %v", err)
	}
}
