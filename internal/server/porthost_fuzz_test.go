package server

import (
	"strings"
	"testing"
)

// FuzzPortHost checks that a host name leads to a port only in the exact form that the server writes.
func FuzzPortHost(f *testing.F) {
	for _, seed := range []string{"80-sbx-01arz3ndektsv4rrffq69g5fav.ports.example",
		"65536-sbx-01arz3ndektsv4rrffq69g5fav.ports.example:1", "[::1]:80", "", "080-sbx-", ".ports.example"} {
		f.Add(seed)
	}
	s := New(f.Context(), Options{PortDomain: "ports.example"})
	f.Fuzz(func(t *testing.T, host string) {
		to, ok := s.portHost(peer{host: host})
		if !ok {
			return
		}
		if to.port < 1 || to.port > 65535 || to.label()+".ports.example" != hostname(host) ||
			!strings.HasPrefix(to.sandbox, "sbx_") {
			t.Errorf("%q leads to %+v", host, to)
		}
		if _, ok := s.portHost(peer{host: host, local: true}); ok {
			t.Errorf("%q over the socket", host)
		}
	})
}
