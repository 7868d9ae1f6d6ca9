package privilege

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// names are the names of capabilities in systemd units.
var names = map[int]string{
	unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_FOWNER: "CAP_FOWNER",
	unix.CAP_FSETID: "CAP_FSETID", unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETGID: "CAP_SETGID",
	unix.CAP_SETFCAP: "CAP_SETFCAP", unix.CAP_SETPCAP: "CAP_SETPCAP", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
	unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
}

// TestUnitHasTheCapabilitiesOfTheServer checks that the systemd unit gives the server all capabilities that it keeps,
// and no others. The one for ports below 1024 is a comment there.
func TestUnitHasTheCapabilitiesOfTheServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/harvest.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(strings.TrimPrefix(line, "#"), "CapabilityBoundingSet="); ok {
			for _, name := range strings.Fields(list) {
				unit[name] = true
			}
		}
	}
	server := map[string]bool{}
	for _, c := range Server {
		if names[c] == "" {
			t.Errorf("capability %d has no name here", c)
		}
		server[names[c]] = true
	}
	if !maps.Equal(unit, server) {
		t.Errorf("docs/harvest.service has %q, the server keeps %q", slices.Sorted(maps.Keys(unit)),
			slices.Sorted(maps.Keys(server)))
	}
}

// TestKeepersHaveLessThanTheServer checks that keepers, to which sandboxes are nearer, have none of the capabilities
// that mount, trace or change the machine, and that the server has all that it passes to them.
func TestKeepersHaveLessThanTheServer(t *testing.T) {
	t.Parallel()
	var got []string
	for _, c := range Keeper {
		if !slices.Contains(Server, c) {
			t.Errorf("keepers have the capability %d, which the server lacks", c)
		}
		got = append(got, names[c])
	}
	slices.Sort(got)
	want := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETFCAP", "CAP_SETGID",
		"CAP_SETUID"}
	if !slices.Equal(got, want) {
		t.Errorf("keepers have %q, want %q", got, want)
	}
	var more []string
	for _, c := range Server {
		if !slices.Contains(Keeper, c) {
			more = append(more, names[c])
		}
	}
	slices.Sort(more)
	if want := []string{"CAP_NET_BIND_SERVICE", "CAP_SETPCAP", "CAP_SYS_ADMIN"}; !slices.Equal(more, want) {
		t.Errorf("the server has beside them %q, want %q", more, want)
	}
}
