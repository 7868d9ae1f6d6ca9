package server_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
)

// TestSSH checks that the route for SSH hands over connections with the principal of their request, and ends them with
// the server. What is spoken on them is that of package ssh.
//
// mission: A7
func TestSSH(t *testing.T) {
	t.Parallel()
	served := make(chan struct{})
	w := start(t, func(o *server.Options) {
		o.SSH = server.SSH{HostKey: "ssh-ed25519 AAAA", Listen: "127.0.0.1:7722",
			Serve: func(ctx context.Context, conn net.Conn, who account.Principal, sandbox, from string) {
				defer close(served)
				fmt.Fprintf(conn, "%s connects to %s from %s\n", who.Account, sandbox, from)
				<-ctx.Done()
				_ = conn.Close()
			}}
	})
	acme := w.as(account.Request{Account: "acme"})
	resp, text := acme.do("GET", api.SSHInfo, "")
	if got := parse[api.SSH](t, text); resp.StatusCode != http.StatusOK || got.HostKey != "ssh-ed25519 AAAA" ||
		got.Listen != "127.0.0.1:7722" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	acme.want(http.StatusBadRequest, "GET", api.Path(api.SandboxSSH, "box"), "")
	w.as(account.Request{Account: "acme", Scopes: []account.Scope{account.Read}}).want(http.StatusForbidden, "GET",
		api.Path(api.SandboxSSH, "box"), "")

	c, err := client.At(w.strict, strings.TrimPrefix(acme.headers[1], "Bearer "))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn, err := c.DialSSH(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	if line, err := lines.ReadString('\n'); err != nil || line != "acme connects to box from 127.0.0.1\n" {
		t.Errorf("it serves %q, %v", line, err)
	}
	w.server.Stop(t.Context())
	<-served
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the connection continues after its server has stopped")
	}
}

// TestWithoutSSH asks a server without SSH.
func TestWithoutSSH(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.want(http.StatusNotImplemented, "GET", api.SSHInfo, "")
	w.want(http.StatusNotImplemented, "GET", api.Path(api.SandboxSSH, "box"), "")
}

// TestPublicKeys adds a public key of SSH, and refuses other texts.
func TestPublicKeys(t *testing.T) {
	t.Parallel()
	w := start(t)
	admin := w.as(account.Request{Account: "acme", Role: account.Admin})
	c, err := client.At(w.url, strings.TrimPrefix(admin.headers[1], "Bearer "))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g me@laptop"
	made, err := c.CreateKey(t.Context(), api.KeyRequest{PublicKey: line})
	if err != nil || made.Kind != "ssh" || made.Name != "me-laptop" || made.Secret != "" {
		t.Fatalf("%+v, %v", made, err)
	}
	const second = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8h"
	if made, err = c.CreateKey(t.Context(), api.KeyRequest{PublicKey: second}); err != nil ||
		!strings.HasPrefix(made.Name, "ssh-SHA256-") {
		t.Errorf("a key without a comment: %+v, %v", made, err)
	}
	for name, req := range map[string]api.KeyRequest{
		"no key": {PublicKey: "-----BEGIN OPENSSH PRIVATE KEY-----"}, "an admin": {PublicKey: line, Role: "admin"},
		"again": {PublicKey: line}, "options": {PublicKey: `from="10.0.0.0/8" ` + line},
		"two keys": {PublicKey: second + "\n" + line + "\n"},
	} {
		if _, err := c.CreateKey(t.Context(), req); errors.KindOf(err) != errors.Invalid && errors.KindOf(err) !=
			errors.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	if keys, err := c.Keys(t.Context(), false); err != nil || len(keys) == 0 || keys[0].Kind != "ssh" {
		t.Errorf("%+v, %v", keys, err)
	}
}
