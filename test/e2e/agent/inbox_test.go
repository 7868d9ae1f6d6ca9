package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// notified is the message of a webhook or a command.
type notified struct {
	Type string
	Data struct {
		Account string
		api.InboxItem
	}
}

// hook is a server that gets an inbox's items.
type hook struct {
	t   *testing.T
	url string

	mu  sync.Mutex
	got []notified
}

const hookSecret = "the-key-of-the-webhook"

func newHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{t: t}
	first := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte(hookSecret))
		fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), body)
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		var m notified
		if err := json.Unmarshal(body, &m); err != nil || r.Header.Get("Webhook-Signature") != want ||
			r.Header.Get("Webhook-Id") != m.Data.ID {
			t.Errorf("%v: %v %s", err, r.Header, body)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if first { // it is sent again
			first = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		h.got = append(h.got, m)
	}))
	t.Cleanup(server.Close)
	h.url = server.URL + "/in"
	return h
}

func (h *hook) messages() []notified {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

// inboxLines waits for the inbox to have these lines, each without the time.
func inboxLines(t *testing.T, h *host.Host, want ...string) []api.InboxItem {
	t.Helper()
	var items []api.InboxItem
	var got []string
	defer func() {
		t.Helper()
		if t.Failed() {
			t.Logf("the inbox is:\n%s\n%s", strings.Join(got, "\n"), h.Log())
		}
	}()
	testenv.Eventually(t, "the inbox "+strings.Join(want, "; "), func() bool {
		items, got = nil, nil
		if err := json.Unmarshal([]byte(h.Must("inbox", "-o", "json")), &items); err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s %s%s", i.Number, i.Kind, i.What, i.Outcome,
				i.SubAgent)))
		}
		return slices.Equal(want, got)
	})
	return items
}

// TestInbox checks that a person can answer what agents want, from one list, also after a restart of the server, and
// that a webhook and a command get each item.
//
// mission: E1, E4
func TestInbox(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	web := newHook(t)
	program := filepath.Join(t.TempDir(), "notify")
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >>\"$1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.Env.Setenv("HARVEST_NOTIFY_WEBHOOK", web.url)
	h.Env.Setenv("HARVEST_NOTIFY_SECRET", hookSecret)
	h.Env.Setenv("HARVEST_NOTIFY_COMMAND", program+" "+log)
	h.Env.Setenv("HARVEST_NOTIFY_KINDS", "approval,question")
	stop := h.UpUntil("--listen", "127.0.0.1:0")

	const asked = "1 approval Bash: echo allowed >/tmp/it explore: approve echo allowed >/tmp/it"
	h.Must("agent", "-d", "--agent", "scripted", "--repo", "none", "--approval", "ask",
		"/agent explore /approve echo allowed >/tmp/it\n/ask Which colour? | red | blue\n/say done")
	id := h.Session()
	items := inboxLines(t, h, asked)
	if i := items[0]; i.Session != id || i.Tool != "Bash" || i.SubAgent == "" {
		t.Errorf("%+v", i)
	}
	h.Has(t, "echo allowed", "inbox", "show", "1")
	stop()
	stop = h.UpUntil("--listen", "127.0.0.1:0")
	defer func() { stop() }()
	inboxLines(t, h, asked)

	for args, want := range map[string]string{"answer 1 red": "asks for approval", "answer 9 allow": "not found",
		"answer x allow": "invalid number", "seen 1": "waits for an answer"} {
		_, stderr, code := h.Run(append([]string{"inbox"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("harvest inbox %s: exit code %d, %s", args, code, stderr)
		}
	}
	h.Must("inbox", "answer", "1", "allow")
	inboxLines(t, h, "2 question Which colour?")
	if _, stderr, code := h.Run("inbox", "answer", "1", "allow"); code == 0 ||
		!strings.Contains(stderr, "it waits no longer") {
		t.Errorf("a second answer: exit code %d, %s", code, stderr)
	}
	if _, stderr, code := h.Run("inbox", "answer", "2", "red", "blue"); code == 0 ||
		!strings.Contains(stderr, "2 answers given, and the question has 1 part") {
		t.Errorf("too many answers: exit code %d, %s", code, stderr)
	}
	h.Must("inbox", "answer", "2", "2")
	inboxLines(t, h, "3 finished done completed")
	h.Has(t, "The answer is blue.", "attach", id)
	h.Has(t, "allowed", "sandbox", "exec", h.Box(), "--", "cat", "/tmp/it")
	h.Must("inbox", "seen", "all")
	inboxLines(t, h)
	h.Has(t, "approval, answered", "inbox", "--all")

	testenv.Eventually(t, "the messages of the webhook", func() bool { return len(web.messages()) >= 2 })
	got := web.messages()
	if len(got) != 2 || got[0].Type != "inbox.added" || got[0].Data.Number != 1 || got[1].Data.Number != 2 ||
		got[0].Data.Account != "personal" || got[0].Data.SubAgent == "" ||
		got[1].Data.Questions[0].Text != "Which colour?" {
		t.Errorf("%+v", got)
	}
	testenv.Eventually(t, "the messages of the command", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Count(string(text), "\n") == 2
	})
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), got[1].Data.ID) {
		t.Errorf("%s, %v", text, err)
	}
	if strings.Contains(h.Log(), hookSecret) || strings.Contains(h.Must("config"), web.url) {
		t.Error("the webhook's secret is shown")
	}
	h.Must("end", "--discard", id)
}

// TestInboxFollow checks that --follow prints what waits, what is added, and what is closed.
//
// mission: E1
func TestInboxFollow(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Must("agent", "-d", "--agent", "scripted", "--repo", "none", "--approval", "ask", "/ask One?\n/ask Two?")
	id := h.Session()
	inboxLines(t, h, "1 question One?")
	cmd := h.Command(t.Context(), "inbox", "--follow")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	host.Expect(t, out, "  1  question  ")
	h.Must("inbox", "answer", "1", "x")
	if got := host.Expect(t, out, "  2  question  "); !strings.Contains(got, "  1  question, answered  ") {
		t.Errorf("before the second question: %s", got)
	}
	h.Must("end", "--discard", id)
	host.Expect(t, out, "  2  question, withdrawn  ")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // an interrupt is an exit code of its own
}
