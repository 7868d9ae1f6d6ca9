package notify_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/inbox/notify"
)

var everything = notify.Choice{Kinds: inbox.Kinds, Accounts: []string{notify.AllAccounts}}

func approval() inbox.Item {
	return inbox.Item{ID: "inb_1", Number: 7, Account: "acme", Kind: inbox.Approval, State: inbox.Waiting,
		Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Session: "ses_1", SubAgent: "explore", What: "Bash: ls",
		Key: "internal", Due: 3}
}

// body is the message for approval.
const body = `{"type":"inbox.added","timestamp":"2026-03-01T12:00:00Z","data":{"account":"acme","id":"inb_1",` +
	`"number":7,"kind":"approval","state":"waiting","since":"2026-03-01T12:00:00Z","session_id":"ses_1",` +
	`"sub_agent":"explore","what":"Bash: ls"}}`

func TestChoice(t *testing.T) {
	t.Parallel()
	c := notify.Choice{Kinds: []inbox.Kind{inbox.Approval}, Accounts: []string{"acme"}}
	other, finished := approval(), approval()
	other.Account, finished.Kind = "other", inbox.Finished
	if !c.Wants(approval()) || c.Wants(other) || c.Wants(finished) || !everything.Wants(other) {
		t.Error("wrong choice")
	}
	if (notify.None{}).Wants(approval()) || (notify.None{}).Send(t.Context(), approval()) != nil {
		t.Error("None is not nothing")
	}
}

// TestWebhookIsSigned checks the request against the specification of Standard Webhooks.
func TestWebhookIsSigned(t *testing.T) {
	t.Parallel()
	key := []byte("a key of 24 bytes, or so")
	for name, secret := range map[string]string{"plain": string(key),
		"base64": "whsec_" + base64.StdEncoding.EncodeToString(key), "none": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got *http.Request
			var text []byte
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r
				text, _ = io.ReadAll(r.Body)
				w.WriteHeader(http.StatusNoContent)
			}))
			defer server.Close()
			w, err := notify.NewWebhook(everything, server.URL+"/in?x=y", secret, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Send(t.Context(), approval()); err != nil {
				t.Fatal(err)
			}
			if got.Method != "POST" || got.URL.String() != "/in?x=y" || string(text) != body ||
				got.Header.Get("Content-Type") != "application/json" || got.Header.Get("Webhook-Id") != "inb_1" {
				t.Errorf("%s %s %v\n%s\nwant\n%s", got.Method, got.URL, got.Header, text, body)
			}
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte("inb_1." + got.Header.Get("Webhook-Timestamp") + "." + body))
			want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
			if secret == "" {
				want = ""
			}
			if sig := got.Header.Get("Webhook-Signature"); sig != want {
				t.Errorf("signature %q, want %q", sig, want)
			}
		})
	}
	if _, err := notify.NewWebhook(everything, "http://x", "whsec_!", nil); !errors.Is(err, errors.Invalid) {
		t.Errorf("an invalid key: %v", err)
	}
}

func TestWebhookFailures(t *testing.T) {
	t.Parallel()
	followed := false
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/other" {
			followed = true
			return
		}
		w.Header().Set("Location", "/other")
		w.WriteHeader(status)
	}))
	defer server.Close()
	w, err := notify.NewWebhook(everything, server.URL+"/secret-path", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[int]errors.Kind{301: errors.Unavailable, 307: errors.Unavailable, 400: errors.Invalid,
		401: errors.Unavailable, 404: errors.Unavailable, 422: errors.Invalid, 429: errors.Unavailable,
		500: errors.Unavailable, 503: errors.Unavailable} {
		status = s
		if err := w.Send(t.Context(), approval()); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %s", s, err, want)
		}
	}
	if followed {
		t.Error("a redirect is followed")
	}
	server.Close()
	if err := w.Send(t.Context(), approval()); !errors.Is(err, errors.Unavailable) ||
		strings.Contains(err.Error(), "secret-path") {
		t.Errorf("a server that is down: %v", err)
	}
}

// script writes a program of the shell, and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommandGetsTheItem(t *testing.T) {
	t.Setenv("NOTIFY_CANARY", "a secret of the server")
	dir := t.TempDir()
	c := notify.Command{Choice: everything, Path: os.Getenv("PATH"),
		Args: []string{script(t, `cat >"$1/in"; env >"$1/env"; pwd >"$1/pwd"; printf '%s\n' "$@" >"$1/args"`), dir,
			"$(touch x); y"}}
	if err := c.Send(t.Context(), approval()); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := read("in"); got != body+"\n" {
		t.Errorf("standard input:\n%s\nwant\n%s", got, body)
	}
	if got := read("args"); got != dir+"\n$(touch x); y\n" {
		t.Errorf("arguments: %q", got)
	}
	if got := read("pwd"); got != "/\n" {
		t.Errorf("directory: %q", got)
	}
	if got := read("env"); strings.Contains(got, "CANARY") || !strings.Contains(got, "PATH=") {
		t.Errorf("environment: %q", got)
	}
	var m struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(read("in")), &m); err != nil || m.Data["account"] != "acme" {
		t.Errorf("%v, %v", m, err)
	}
}

func TestCommandFailures(t *testing.T) {
	t.Parallel()
	send := func(limit time.Duration, args ...string) error {
		return notify.Command{Choice: everything, Path: os.Getenv("PATH"), Args: args, Limit: limit}.Send(t.Context(),
			approval())
	}
	if err := send(0, script(t, "echo it is broken >&2; exit 3")); !errors.Is(err, errors.Unavailable) ||
		!strings.Contains(errors.Message(err), "it is broken") {
		t.Errorf("exit 3: %v", err)
	}
	if err := send(0, "/does/not/exist"); !errors.Is(err, errors.Unavailable) {
		t.Errorf("no such program: %v", err)
	}
	if err := send(0, script(t, "head -c 1000000 /dev/zero | tr '\\0' x; exit 1")); len(errors.Message(err)) > 1000 {
		t.Errorf("a long output: %d bytes", len(errors.Message(err)))
	}
	// A program that reads nothing succeeds, and one that goes on is killed with its descendants.
	if err := send(0, "/bin/true"); err != nil {
		t.Errorf("a program that reads nothing: %v", err)
	}
	pid := filepath.Join(t.TempDir(), "pid")
	err := send(time.Second, script(t, `sleep 1000 & echo $! >"`+pid+`"; wait`))
	if !errors.Is(err, errors.Timeout) {
		t.Errorf("a program that goes on: %v", err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "its descendant has ended", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
