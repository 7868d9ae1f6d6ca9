package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
)

// kubeconfigOf is a configuration for an API server.
func kubeconfigOf(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	testenv.WriteFile(t, path, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u", "user": {"token": "hush"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}]}`, url))
	return path
}

// refuse answers as an API server that refuses a request.
func refuse(t *testing.T, w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	err := json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Message: message})
	if err != nil {
		t.Error(err)
	}
}

// TestRefusedConnections checks that a refusal to attach to a pod, or to connect to its port, has the kind and the text
// of the API server. client-go's fallback from WebSocket to SPDY keeps neither.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	code, message, first := 0, "", ""
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.URL.Path)
		if r.Method == http.MethodGet && first != "" {
			refuse(t, w, code, first)
			return
		}
		refuse(t, w, code, message)
	}))
	defer server.Close()
	a, err := connect(Options{Kubeconfig: kubeconfigOf(t, server.URL)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code   int
		text   string
		kind   errors.Kind
		remedy string
	}{
		{http.StatusForbidden, `cannot get resource "pods/x"`, errors.Denied, "rights.yaml"},
		{http.StatusForbidden, `admission webhook "w" denied the request`, errors.Denied, "rights.yaml"},
		{http.StatusUnauthorized, "Unauthorized", errors.Unauthenticated, "kubeconfig"},
		{http.StatusNotFound, `pods "harvest-1" not found`, errors.NotFound, ""},
		{http.StatusInternalServerError, "no kubelet", errors.Unavailable, ""},
	} {
		code, message, first, asked = c.code, c.text, "", nil
		if c.code == http.StatusForbidden { // as Kubernetes 1.37 does to WebSockets without create
			first = `pods "harvest-1" is forbidden: `
		}
		_, forwarded := a.forward(t.Context(), "harvest-1")
		for what, err := range map[string]error{"attach": a.greet(t.Context(), "harvest-1", mutual.Credentials{
			Key: []byte("hush")}), "port-forward": forwarded} {
			if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.text) ||
				!strings.Contains(errors.RemedyOf(err), c.remedy) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%s, %d: %s: %v, with the remedy %q", what, c.code, errors.KindOf(err), err,
					errors.RemedyOf(err))
			}
		}
		for _, resource := range []string{"attach", "portforward"} {
			for _, method := range []string{"GET", "POST"} {
				if !slices.Contains(asked, method+" /api/v1/namespaces/team/pods/harvest-1/"+resource) {
					t.Errorf("%s was not tried with %s: %q", resource, method, asked)
				}
			}
		}
	}
}

// TestRefusedConnectionsAreNotStrangers checks that a pod that the server may not connect to gets no new identity.
func TestRefusedConnectionsAreNotStrangers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/portforward") {
			t.Errorf("a request for %s", r.URL)
		}
		refuse(t, w, http.StatusForbidden, "no")
	}))
	defer server.Close()
	e, _ := followed(t)
	var err error
	if e.api, err = connect(Options{Kubeconfig: kubeconfigOf(t, server.URL)}); err != nil {
		t.Fatal(err)
	}
	e.opts.Reach = Forward
	if _, err := e.connect(t.Context(), "harvest-1", "box"); !errors.Is(err, errors.Denied) {
		t.Errorf("got %v", err)
	}
}

// TestNamesAreChecked checks that no request goes to another address than that of a pod. client-go makes a URL without
// the name from a request with an invalid one.
func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a request for %s", r.URL)
		refuse(t, w, http.StatusNotFound, "no")
	}))
	defer server.Close()
	a, err := connect(Options{Kubeconfig: kubeconfigOf(t, server.URL)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		_, forwarded := a.forward(t.Context(), name)
		for _, err := range []error{a.greet(t.Context(), name, mutual.Credentials{}), forwarded} {
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}

// TestOpenIsRefused opens the engine with rights that do not suffice.
func TestOpenIsRefused(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{"list", "watch"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			watch := r.URL.Query().Get("watch") != ""
			if watch == (refused == "watch") {
				refuse(t, w, http.StatusForbidden, "cannot "+refused+" resource")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}`)
		}))
		_, err := Open(t.Context(), Options{Dir: t.TempDir(), Kubeconfig: kubeconfigOf(t, server.URL),
			Pod: Pod{Image: "pod:1"}})
		server.Close()
		if !errors.Is(err, errors.Denied) || !strings.Contains(errors.Message(err), "cannot "+refused) ||
			errors.RemedyOf(err) == "" {
			t.Errorf("without %s: %v, with the remedy %q", refused, err, errors.RemedyOf(err))
		}
	}
}

// silent attaches to a pod whose node is gone.
func silent(ctx context.Context, _ remotecommand.StreamOptions) error {
	<-ctx.Done()
	<-time.After(time.Hour) // as a request that does not notice
	return ctx.Err()
}

func TestGreetGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := introduce(t.Context(), silent, "harvest-1", mutual.Credentials{}); !errors.Is(err,
			errors.Unavailable) || !strings.Contains(errors.Message(err), "harvest-1 does not answer") {
			t.Errorf("a pod that is silent: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := introduce(ctx, silent, "harvest-1", mutual.Credentials{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request: %v", err)
		}
		<-time.After(2 * time.Hour)
	})
}

// followed is an engine with one pod, which runs the sandbox box. end ends it.
func followed(t *testing.T) (e *Engine, end func(corev1.PodStatus)) {
	t.Helper()
	all := &pods{all: map[string]*corev1.Pod{}, changed: make(chan struct{}), leaving: make(chan struct{}, 1)}
	e = &Engine{pods: all,
		known: map[string]*holding{"harvest-1": {id: "box"}}, running: t.Context()}
	set := func(status corev1.PodStatus) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "harvest-1"}, Status: status}
		if err := e.pods.Update(p); err != nil {
			t.Error(err)
		}
	}
	set(corev1.PodStatus{Phase: corev1.PodRunning})
	e.follow("harvest-1")
	return e, set
}

var evicted = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory."}

// TestRemaining checks that a pod that is being deleted has connections while it can still run.
func TestRemaining(t *testing.T) {
	t.Parallel()
	now := time.Now()
	deleted := func(phase corev1.PodPhase, grace time.Duration) *corev1.Pod {
		at := metav1.NewTime(now.Add(grace))
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &at},
			Status: corev1.PodStatus{Phase: phase}}
	}
	for want, p := range map[time.Duration][]*corev1.Pod{
		lastWords: {nil, {Status: evicted}, deleted(corev1.PodFailed, time.Minute), deleted(corev1.PodRunning,
			-time.Minute)},
		time.Minute + lastWords: {deleted(corev1.PodRunning, time.Minute)},
	} {
		for _, p := range p {
			if got := remaining(p, now); got != want {
				t.Errorf("%s for %+v, want %s", got, p, want)
			}
		}
	}
}

// TestWaitFollowsKubernetes waits for a sandbox whose pod does not answer.
func TestWaitFollowsKubernetes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, end := followed(t)
		s := e.sandbox(engine.Handle{ID: "box", Ref: "harvest-1"})
		s.Keeper.Client.Connect = func(ctx context.Context) (*wire.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		time.AfterFunc(time.Hour, func() { end(evicted) })
		got, err := s.Wait(t.Context())
		if err != nil || !got.Lost || got.Detail != "Kubernetes ended the pod: Evicted: low on memory" {
			t.Errorf("it ended with %+v, %v", got, err)
		}
		e.drop("harvest-1")
		synctest.Wait()
	})
}

// TestWaitAsksThePod checks that the pod's own reason is preferred to that of Kubernetes.
func TestWaitAsksThePod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, end := followed(t)
		s := e.sandbox(engine.Handle{ID: "box", Ref: "harvest-1"})
		s.Keeper.Client.Connect = func(context.Context) (*wire.Conn, error) {
			near, far := net.Pipe()
			go func() {
				conn := wire.NewConn(far)
				defer conn.Close()
				if _, _, err := conn.Receive(); err != nil {
					return
				}
				end(evicted)
				<-time.After(time.Second)
				_ = conn.SendJSON(wire.KindReply, wire.Reply{End: &engine.End{OutOfMemory: true, Detail: "full"}})
			}()
			return wire.NewConn(near), nil
		}
		if got, err := s.Wait(t.Context()); err != nil || !got.OutOfMemory || got.Detail != "full" {
			t.Errorf("it ended with %+v, %v", got, err)
		}
		e.drop("harvest-1")
		<-time.After(time.Minute)
	})
}

// TestConnectionsEndWithThePod checks that nothing waits for a pod that is gone.
func TestConnectionsEndWithThePod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, ends := range map[string]func(*Engine, func(corev1.PodStatus)){
			"evicted":   func(_ *Engine, end func(corev1.PodStatus)) { end(evicted) },
			"destroyed": func(e *Engine, _ func(corev1.PodStatus)) { e.drop("harvest-1") },
		} {
			e, end := followed(t)
			near, far := net.Pipe()
			closed := tied(near, e.lifeOf("harvest-1"))
			if err := tied(far, e.lifeOf("harvest-1")).Close(); err != nil { // no trace is left of this one
				t.Error(err)
			}
			near2, far2 := net.Pipe()
			defer far2.Close()
			conn := tied(near2, e.lifeOf("harvest-1"))
			time.AfterFunc(time.Hour, func() { ends(e, end) })
			begun := time.Now()
			if _, err := conn.Read(make([]byte, 1)); err == nil || time.Since(begun) < time.Hour {
				t.Errorf("%s: a read ended after %s with %v", name, time.Since(begun), err)
			}
			if err := errors.Join(closed.Close(), conn.Close()); err != nil {
				t.Error(err)
			}
			e.drop("harvest-1")
			<-time.After(time.Minute)
		}
	})
}
