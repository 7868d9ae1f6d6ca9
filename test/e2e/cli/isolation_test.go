package cli_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestIsolationIsAChoice checks that a server runs sandboxes of both kinds beside each other, with one library of
// images and one of volumes, that each says what it is, and that a server whose operator did not allow containers
// refuses them.
func TestIsolationIsAChoice(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		t.Fatal(err)
	}
	kernel := unix.ByteSliceToString(uname.Release[:])
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_ISOLATION_ALLOWED", "gvisor,container")
	for isolation, want := range map[string]bool{"container": true, "gvisor": false, "": false} {
		args := []string{"run", "-v", "shared:/shared"}
		if isolation != "" {
			args = append(args, "--isolation", isolation)
		}
		out := h.Must(append(args, "--", "sh", "-c", "uname -r; id -u; echo "+isolation+" >>/shared/seen")...)
		got, rest, _ := strings.Cut(strings.TrimSpace(out), "\n")
		if (got == kernel) != want || rest != "0" {
			t.Errorf("isolation %q: the kernel is %q, the user %q; this machine's kernel is %s", isolation, got, rest,
				kernel)
		}
	}
	seen := h.Must("run", "--isolation", "container", "-v", "shared:/shared", "--", "wc", "-l", "/shared/seen")
	if seen != "3 /shared/seen" {
		t.Errorf("the sandboxes of both kinds wrote %q", seen)
	}
	h.Must("sandbox", "create", "--name", "box", "--isolation", "container")
	if out := h.Must("sandbox", "get", "box"); !strings.Contains(out, "container (shares this machine's kernel)") {
		t.Errorf("the sandbox does not say what it is:\n%s", out)
	}
	h.Must("sandbox", "exec", "box", "--", "touch", "/made")
	snapshot := strings.TrimSpace(h.Must("sandbox", "snapshot", "box", "-o", "name"))
	for _, isolation := range []string{"gvisor", "container"} {
		if out := h.Must("run", "--image", snapshot, "--isolation", isolation, "--", "ls", "/made"); out != "/made" {
			t.Errorf("the snapshot of a container, with %s, has %q", isolation, out)
		}
	}
	h.Must("sandbox", "rm", "box")
	h.Must("image", "rm", snapshot)

	strict := host.New(t, "gvisor", host.GVisor(t))
	_, out, code := strict.Run("run", "--isolation", "container", "--", "true")
	if code == 0 || !strings.Contains(out, `the isolation "container" is not among those of this server: gvisor`) ||
		!strings.Contains(out, "isolation.allowed") {
		t.Errorf("a server that allows none: exit code %d\n%s", code, out)
	}
}
