package oci_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
)

// owners is a transport that lets the operator's images come from this machine, and other accounts' images only from
// hosts.
func owners(hosts ...string) func(string) http.RoundTripper {
	own, other := oci.NewTransport(netguard.Rules{Loopback: true}), oci.NewTransport(netguard.Rules{Hosts: hosts})
	return func(owner string) http.RoundTripper {
		if owner == "" {
			return own
		}
		return other
	}
}

// inner is a server on the host's own network that must not receive any request.
func inner(t *testing.T) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, `{"token":"of the host"}`)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			asked.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), asked
}

// A member's image names an address of the host: open and closed ports answer alike, and nothing arrives.
func TestImagesOfMembersDoNotReachTheHost(t *testing.T) {
	t.Parallel()
	at, asked := inner(t)
	gone := httptest.NewServer(nil)
	gone.Close()
	s := open(t, oci.Options{Transport: owners()})
	texts := map[string]bool{}
	for _, host := range []string{at, strings.TrimPrefix(gone.URL, "http://")} {
		_, err := pullContext(t, t.Context(), s, image.Spec{Base: host + "/a/b", Owner: "acme"},
			as(image.Credential{Anonymous: true}))
		expect(t, host, err, errors.Denied)
		texts[strings.ReplaceAll(errors.Message(err), host, "HOST")] = true
		if !strings.Contains(errors.RemedyOf(err), "connect.allow") {
			t.Errorf("the remedy is %q", errors.RemedyOf(err))
		}
	}
	if len(texts) != 1 {
		t.Errorf("open and closed ports differ: %v", texts)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d connections arrived", n)
	}
}

// A registry leads to the host, with the realm of its tokens or with redirects of blobs. Nothing arrives there.
func TestRegistriesDoNotLeadToTheHost(t *testing.T) {
	t.Parallel()
	at, asked := inner(t)
	_, port, _ := net.SplitHostPort(at)
	for name, answer := range map[string]http.HandlerFunc{
		"realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://localhost:`+port+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"realm by address": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+at+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			http.Redirect(w, r, "http://localhost:"+port+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"redirect of the first request": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+at+"/", http.StatusFound)
		},
	} {
		var sent atomic.Int32
		evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), "of the host") {
				sent.Add(1)
			}
			answer(w, r)
		}))
		defer evil.Close()
		host := strings.TrimPrefix(evil.URL, "http://")
		s := open(t, oci.Options{Transport: owners(host)})
		_, err := pullContext(t, t.Context(), s, image.Spec{Base: host + "/a/b", Owner: "acme"},
			as(image.Credential{User: "u", Password: "p"}))
		if err == nil || asked.Load() != 0 || sent.Load() != 0 {
			t.Errorf("%s: %v; %d connections arrived, a token was sent %d times", name, err, asked.Load(), sent.Load())
		}
	}
}

// A registry with TLS must not have credentials sent without.
func TestRegistriesWithTLSDoNotLeadOutOfIt(t *testing.T) {
	t.Parallel()
	at, asked := inner(t)
	evil := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		http.Redirect(w, r, "http://"+at+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer evil.Close()
	// A name that does not stand for this machine, so that it is spoken to with TLS only.
	client := evil.Client().Transport.(*http.Transport).Clone()
	client.Proxy = nil
	client.TLSClientConfig.ServerName = "example.com"
	addr := evil.Listener.Addr().String()
	client.DialContext = func(ctx context.Context, network, _ string) (net.Conn,
		error) { // every name leads to the server
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	rt := netguard.Unguarded(client)
	s := open(t, oci.Options{Transport: func(string) http.RoundTripper { return rt }})
	_, err := pull(t, s, "registry.example.com/a/b", as(image.Credential{User: "u", Password: "p"}))
	expect(t, "a redirect out of TLS", err, errors.Denied)
	if asked.Load() != 0 {
		t.Error("a connection without TLS was made")
	}
}

// TestOperatorsImagesComeFromThisMachine checks that the operator's own images may still come from this machine, and
// members' images from the hosts that the operator allows.
func TestOperatorsImagesComeFromThisMachine(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref := h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", "x")))
	s := open(t, oci.Options{Transport: owners(h.host)})
	for _, owner := range []string{"", "acme"} {
		if _, err := pullContext(t, t.Context(), s, image.Spec{Base: ref, Owner: owner},
			as(image.Credential{Anonymous: true})); err != nil {
			t.Errorf("%q: %v", owner, err)
		}
	}
	other := open(t, oci.Options{Transport: owners()})
	_, err := pullContext(t, t.Context(), other, image.Spec{Base: ref, Owner: "acme"},
		as(image.Credential{Anonymous: true}))
	expect(t, "a member without an exception", err, errors.Denied)
}
