package sandboxes

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func TestParseNetwork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]api.Network{
		"":                                  {},
		"none":                              {Mode: "none"},
		"default":                           {Mode: "default"},
		"none none":                         {Mode: "none"},
		"allow=a.org,b.org allow=c.org:443": {Mode: "allow", Allow: []string{"a.org", "b.org", "c.org:443"}},
		"default allow=10.0.0.0/8":          {Mode: "default", Allow: []string{"10.0.0.0/8"}},
		"deny=a.org":                        {Mode: "default", Deny: []string{"a.org"}},
		"allow=*.a.org deny=x.a.org,":       {Mode: "allow", Allow: []string{"*.a.org"}, Deny: []string{"x.a.org"}},
	} {
		got, err := cli.ParseNetwork(strings.Fields(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
		again, err := cli.ParseNetwork(strings.Fields(networkText(got)))
		if diff := cmp.Diff(want, again); err != nil || diff != "" {
			t.Errorf("%s as it is shown, %s: %v\n%s", text, networkText(got), err, diff)
		}
	}
	for _, text := range []string{"odd", "allow", "allow=", "allow=,", "deny", "none=a", "none default", "=a",
		"allow a.org"} {
		if got, err := cli.ParseNetwork(strings.Fields(text)); !errors.Is(err, errors.Invalid) ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

func TestParseForwards(t *testing.T) {
	t.Parallel()
	got, err := parseForwards([]string{"8080", "18081:8081"})
	if err != nil || len(got) != 2 || got[0].address != "" || got[0].port != 8080 ||
		got[1].address != "127.0.0.1:18081" || got[1].port != 8081 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"0", "x", "65536", ":80", "80:", "80:x", "1:2:3", "-1"} {
		if got, err := parseForwards([]string{bad}); !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
	if _, err := parseForwards([]string{"80", "81:80"}); !errors.Is(err, errors.Invalid) {
		t.Errorf("twice: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	opened, err := listenAll([]forward{{port: port}})
	if err != nil || opened[0].listener.Addr().String() == taken.Addr().String() {
		t.Errorf("a port that is taken: %v", err)
	}
	closeAll(opened)
	if _, err := listenAll([]forward{{port: 80, address: "127.0.0.1:0"},
		{port: 81, address: taken.Addr().String()}}); !errors.Is(err, errors.Invalid) {
		t.Errorf("an address that is taken: %v", err)
	}
}

func TestPortsOfEndedSandboxes(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]struct {
		kind   errors.Kind
		remedy string
	}{
		"creating":   {errors.Conflict, "wait until it is running"},
		"terminated": {errors.Gone, "harvest sandbox get sbx_1"},
		"failed":     {errors.Gone, "harvest sandbox get sbx_1"},
	} {
		err := wantRunning(api.Sandbox{ID: "sbx_1", Status: status, Reason: "because"})
		if !errors.Is(err, want.kind) || !strings.Contains(errors.Message(err), "sbx_1 is "+status+" (because)") ||
			!strings.Contains(errors.RemedyOf(err), want.remedy) {
			t.Errorf("%s: %v, remedy %q", status, err, errors.RemedyOf(err))
		}
	}
	if err := wantRunning(api.Sandbox{ID: "sbx_1", Status: "running"}); err != nil {
		t.Error(err)
	}
}

func TestPortText(t *testing.T) {
	t.Parallel()
	box := api.Sandbox{PortDetails: []api.PortDetail{{Port: 1, Label: "W\x1beb\u202e", Protocol: "https"},
		{Port: 2, Label: "API"}, {Port: 3, Protocol: "http"}}}
	for port, want := range map[int]string{1: "1 (Web, https)", 2: "2 (API)", 3: "3 (http)", 4: "4"} {
		if got := portText(box, port); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
