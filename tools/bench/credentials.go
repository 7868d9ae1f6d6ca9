package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// The measures and the sides of the row of credentials.
const (
	tlsDownload = "download over TLS with curl"
	tlsRequest  = "a request on an open TLS connection"
	tlsAdded    = "a bound host adds to it"
	boundSide   = harvest
	unboundSide = "unbound"

	tokenValue = "value-of-the-token"
)

// openVault opens the secrets of the lab, with an authority for the servers of rows.
func (l *lab) openVault(ctx context.Context) (err error) {
	if l.authority, err = authority.New("benchmark", authority.Limits{}); err != nil {
		return err
	}
	l.vault, err = secret.Open(ctx, secret.Options{Store: l.db.Secrets(), KeyFile: filepath.Join(l.dir, "secret.key")})
	if err == nil {
		l.then(l.vault.Close)
	}
	return err
}

// benchCredentials measures connections of a sandbox to a server that its secret is bound to, beside connections to the
// same server at a port that it is not bound to.
func benchCredentials(ctx context.Context, l *lab, r *recorder) (err error) {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	gateway := netstack.IPv4().Gateway.String()
	pair, err := l.authority.Certificate(gateway)
	if err != nil {
		return err
	}
	ports, allow := map[string]string{}, []string{}
	var lent [2]atomic.Int64 // requests without the value, and with it
	for _, name := range []string{boundSide, unboundSide} {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*pair}})
		if err != nil {
			return errors.Wrapf(err, "serve a host")
		}
		defer listener.Close()
		count := func(w http.ResponseWriter, req *http.Request) {
			lent[strings.Count(req.Header.Get("Authorization"), tokenValue)].Add(1)
			download(w, req)
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(count)}
		go func() { _ = s.Serve(listener) }()
		if _, ports[name], err = net.SplitHostPort(listener.Addr().String()); err != nil {
			return errors.Wrapf(err, "serve a host")
		}
		allow = append(allow, listener.Addr().String())
	}
	var to binding.Binding
	to.Places = []binding.Place{{Inject: binding.Inject{Form: binding.Bearer}}}
	if err := to.Places[0].Host.UnmarshalText([]byte(net.JoinHostPort(gateway, ports[boundSide]))); err != nil {
		return err
	}
	if _, err := l.vault.SetBound(ctx, account, "api", secret.Pairs{"TOKEN": tokenValue}, secret.Merge,
		&to); err != nil {
		return err
	}
	sb, destroy, err := l.create(ctx, spec.Request{Secrets: []string{"api"}, Network: spec.Network{
		Mode: string(engine.NetworkAllow), Allow: allow}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	run := func(ctx context.Context, m *Measure, args ...string) (sample, error) {
		var out strings.Builder
		err := l.exec(ctx, sb.ID, fleet.ExecRequest{Args: args, Stdout: &out})
		return figure(m, out.String(), err)
	}
	speed := r.measure(tlsDownload, "MB/s")
	speed.Aim = &Aim{Peer: unboundSide, AtLeast: 0.7}
	requests := r.measure(tlsRequest, "ms")
	var sides [2][]side
	for name, port := range ports {
		host := net.JoinHostPort(gateway, port)
		sides[0] = append(sides[0], side{name, func(ctx context.Context) (sample, error) {
			return run(ctx, speed, append(curlTo("https://"+host+"/"+strconv.Itoa(transferBytes)), "-k")...)
		}})
		sides[1] = append(sides[1], side{name, func(ctx context.Context) (sample, error) {
			return run(ctx, requests, "python3", "-c", networkScript, "requests", gateway, port, "300")
		}})
	}
	n := r.count(2, 10)
	err = errors.Join(r.turns(ctx, n, []*Measure{speed}, sides[0]...),
		r.turns(ctx, n, []*Measure{requests}, sides[1]...))
	r.check("half of the requests have the value", lent[0].Load() == lent[1].Load() && lent[1].Load() > 0,
		fmt.Sprintf("%d without it, %d with it", lent[0].Load(), lent[1].Load()))
	added := r.measure(tlsAdded, "ms")
	added.Aim = &Aim{AtMost: 1}
	other := requests.series(unboundSide).Values
	for i, took := range requests.series(boundSide).Values {
		if i < len(other) {
			added.add(harvest, took-other[i])
		}
	}
	return err
}

// download answers with as many bytes as the path says.
func download(w http.ResponseWriter, req *http.Request) {
	n, err := strconv.ParseInt(strings.TrimPrefix(req.URL.Path, "/"), 10, 64)
	if err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(n))
	chunk := make([]byte, 1<<20)
	for ; n > 0; n -= int64(len(chunk)) {
		if _, err := w.Write(chunk[:min(n, int64(len(chunk)))]); err != nil {
			return
		}
	}
}
