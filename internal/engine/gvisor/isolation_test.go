package gvisor_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
)

// TestKindsOfIsolation checks that the engines of both kinds share images, volumes and handles, and that an unknown
// kind is refused.
func TestKindsOfIsolation(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	e := open(t, testenv.DataDir(t))
	if _, err := e.Isolation("firecracker"); !errors.Is(err, errors.Unsupported) || errors.RemedyOf(err) == "" {
		t.Errorf("an unknown kind: %v", err)
	}
	for _, kind := range []string{engine.GVisor, engine.Container} {
		of, err := e.Isolation(kind)
		if err != nil {
			t.Fatal(err)
		}
		if label := of.Capabilities().Isolation; of.Name() != kind || !strings.HasPrefix(label, kind) {
			t.Errorf("the engine %s is called %s, with the label %q", kind, of.Name(), label)
		}
		sb := create(t, of, engine.Spec{ID: kind})
		again, err := e.Open(t.Context(), sb.Handle())
		if err != nil {
			t.Fatal(err)
		}
		inGVisor := strings.Contains(runAs(t, again, "", "cat /proc/version"), "gvisor")
		if inGVisor != (kind == engine.GVisor) {
			t.Errorf("the sandbox of the kind %s runs in gVisor: %t", kind, inGVisor)
		}
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("the engine lists %+v, %v", list, err)
	}
}

// TestContainerSeesItsOwnCgroup checks that a container sees its cgroup as the root, and none of this machine's.
func TestContainerSeesItsOwnCgroup(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	e, err := open(t, testenv.DataDir(t)).Containers()
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one"})
	create(t, e, engine.Spec{ID: "two"})
	for line := range strings.Lines(runAs(t, sb, "", "cat /proc/self/cgroup")) {
		if strings.Contains(line, "harvest-") {
			t.Errorf("it sees its place in the tree of this machine: %s", line)
		}
	}
	if got := runAs(t, sb, "", "find /sys/fs/cgroup -name 'harvest-*'"); strings.TrimSpace(got) != "" {
		t.Errorf("it sees cgroups of this machine: %s", got)
	}
}

// TestContainersAreChecked checks what the doctor says of containers.
func TestContainersAreChecked(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	dir := testenv.DataDir(t)
	if f := gvisor.CheckContainers(t.Context(), dir, testenv.KeeperBinary(t), testenv.ToolsBinary(t)); !f.OK ||
		!strings.Contains(f.Detail, "share the kernel") || !strings.Contains(f.Detail, "no limit of disk") {
		t.Errorf("%+v", f)
	}
	if f := gvisor.CheckContainers(t.Context(), dir, testenv.KeeperBinary(t), "/bin/true"); f.OK || f.Remedy == "" {
		t.Errorf("with a program that is no first process: %+v", f)
	}
}

// TestContainerEndsWithItsKeeper checks that nothing of a container is left when its keeper is killed.
func TestContainerEndsWithItsKeeper(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	dir := testenv.DataDir(t) // it looks for leftovers
	e, err := open(t, dir).Containers()
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, e, engine.Spec{ID: "one", Network: engine.Network{Mode: engine.NetworkDefault}})
	if _, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(stateOf(t, dir, sb).Keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end, err := sb.Wait(t.Context())
	if err != nil || end.Destroyed || end.Detail == "" {
		t.Errorf("the end is %+v, %v", end, err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
