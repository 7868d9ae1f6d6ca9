package modalengine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// inModalProcess runs the test itself in a separate process, whose environment names our own server in Modal's place,
// and reports whether this is that process.
func inModalProcess(t *testing.T) (program string, inside bool) {
	t.Helper()
	if program := os.Getenv(modalEngineEnv); program != "" {
		return program, true
	}
	h := modalhost.WithBase(t)
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=15m"}
	if dir := flag.Lookup("test.gocoverdir"); testing.CoverMode() != "" && dir != nil {
		args = append(args, "-test.gocoverdir="+dir.Value.String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(testenv.CleanEnv(), append(h.Modal, modalEngineEnv+"="+h.Program,
		"MODAL_CONFIG_PATH="+filepath.Join(t.TempDir(), "none.toml"))...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, failuresOf(string(out)))
	}
	return "", false
}

// openModal opens the engine. It is closed when the test ends.
func openModal(t *testing.T, opts modalengine.Options) *modalengine.Engine {
	t.Helper()
	opts.Image = "base"
	e, err := modalengine.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// atModal is the SDK's view of the sandboxes that attend to volumes.
type atModal struct{ client *sdk.Client }

func newAtModal(t *testing.T) atModal {
	t.Helper()
	client, err := sdk.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return atModal{client}
}

func (m atModal) attendants(t *testing.T) (ids []string) {
	t.Helper()
	all, err := m.client.Sandboxes.List(t.Context(),
		&sdk.SandboxListParams{Tags: map[string]string{"harvest-attendant": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	for sb, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.SandboxID)
	}
	return ids
}

// without waits until all of them are gone.
func (m atModal) without(t *testing.T, ids []string) {
	t.Helper()
	testenv.Try(t, func() error {
		left := slices.DeleteFunc(m.attendants(t), func(id string) bool { return !slices.Contains(ids, id) })
		if len(left) > 0 {
			return errors.Errorf("%v are still there", left)
		}
		return nil
	})
}

func tarOf(t *testing.T, name, content string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// contentOf is a file of a volume.
func contentOf(t *testing.T, v volume.Volume, path string) string {
	t.Helper()
	r, err := v.CopyOut(t.Context(), path)
	if err != nil {
		t.Fatalf("CopyOut %s: %v", path, err)
	}
	defer r.Close()
	from := tar.NewReader(r)
	if _, err := from.Next(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestModalVolumes checks that the attendant that accesses volumes at Modal exists while it is needed, also that of a
// server that has died, and that it is never listed among the sandboxes.
//
// mission: C1, C2
func TestModalVolumes(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program, inside := inModalProcess(t)
	if !inside {
		return
	}
	ctx, modal, dir := t.Context(), newAtModal(t), t.TempDir()
	e := openModal(t, modalengine.Options{Dir: dir, Executable: program, VolumeIdle: time.Second})
	state, err := e.Volumes().Create(ctx, volume.StateName)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	list, err := state.ReadDir(ctx, "")
	for _, entry := range list {
		names = append(names, entry.Name)
	}
	if want := slices.Sorted(slices.Values(volume.StateDirs)); err != nil || !slices.Equal(names, want) {
		t.Errorf("the state volume has %v, %v", names, err)
	}
	modal.without(t, modal.attendants(t)) // each ends after a while without requests

	mine, theirs := volume.Of(e.Volumes(), "acme"), volume.Of(e.Volumes(), "other")
	v, err := mine.Create(ctx, "data")
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 6<<20)
	_, _ = rand.Read(big)
	if err := v.CopyIn(ctx, "sub", tarOf(t, "big", string(big))); err != nil {
		t.Fatal(err)
	}
	if got := contentOf(t, v, "sub/big"); got != string(big) {
		t.Errorf("%d bytes came back", len(got))
	}
	if list, err := mine.List(ctx); err != nil || len(list) != 1 || list[0].Name != "data" ||
		list[0].Size != int64(len(big)) || list[0].Files != 1 {
		t.Errorf("List: %+v, %v", list, err)
	}
	if list, err := theirs.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("another account's: %+v, %v", list, err)
	}
	if handles, err := e.List(ctx); err != nil || len(handles) != 0 {
		t.Errorf("the engine lists %v, %v", handles, err)
	}

	// As after a crash: another engine of the same installation starts.
	died := openModal(t, modalengine.Options{Dir: dir, Executable: program, VolumeIdle: time.Hour})
	again, err := volume.Of(died.Volumes(), "acme").Open(ctx, "data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.ReadDir(ctx, ""); err != nil {
		t.Fatal(err)
	}
	left := modal.attendants(t)
	next := openModal(t, modalengine.Options{Dir: dir, Executable: program})
	modal.without(t, left)
	again, err = volume.Of(next.Volumes(), "acme").Open(ctx, "data")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.CopyIn(ctx, "", tarOf(t, "after", "a")); err != nil {
		t.Errorf("after the sweep: %v", err)
	}
	if got := contentOf(t, again, "after"); got != "a" {
		t.Errorf("after the sweep it has %q", got)
	}
	if attending := modal.attendants(t); len(attending) == 0 {
		t.Error("nothing attends to a volume that was just used")
	} else if err := next.Close(); err != nil {
		t.Error(err)
	} else {
		modal.without(t, attending)
	}

	// Operations that the engine does not support, and objects that Modal has lost.
	_, err = e.Images().Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := e.Images().Find(ctx, "base")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(ctx, engine.Spec{ID: "dir", Image: img.ID,
		Mounts: []engine.Mount{{Dir: "/tmp", Path: "/x"}}}); errors.KindOf(err) != errors.Unsupported ||
		errors.RemedyOf(err) == "" {
		t.Errorf("a directory of this machine: %v", err)
	}
	server, err := os.ReadFile(filepath.Join(dir, "server"))
	if err != nil {
		t.Fatal(err)
	}
	lost, err := e.Volumes().Create(ctx, "lost")
	if err != nil {
		t.Fatal(err)
	}
	if err := modal.client.Volumes.Delete(ctx, string(server)+"-volume-lost", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := lost.ReadDir(ctx, ""); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a volume that Modal has lost: %v", err)
	}
	if _, err := e.Create(ctx, engine.Spec{ID: "lost", Image: img.ID,
		Mounts: []engine.Mount{{Volume: "lost", Path: "/x"}}}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a sandbox with a volume that Modal has lost: %v", err)
	}
	if err := e.Volumes().Delete(ctx, "lost"); err != nil {
		t.Errorf("Delete of a volume that Modal has lost: %v", err)
	}
}

// fleetAtModal is a server's sandboxes at Modal.
type fleetAtModal struct {
	*fleet.Fleet
	mu     sync.Mutex
	events []record.Event // guarded by mu
}

func (f *fleetAtModal) until(t *testing.T, want record.EventType) (found record.Event) {
	t.Helper()
	testenv.Eventually(t, "an event "+string(want), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		i := slices.IndexFunc(f.events, func(e record.Event) bool { return e.Type == want })
		if i >= 0 {
			found = f.events[i]
		}
		return i >= 0
	})
	return found
}

func openFleetAtModal(t *testing.T, e engine.Engine) *fleetAtModal {
	t.Helper()
	f := &fleetAtModal{}
	var err error
	f.Fleet, err = fleet.Open(t.Context(), fleet.Options{Engine: e, Store: testdb.Open(t).Sandboxes(),
		Machine: spec.Machine{CPU: 2, Memory: 4 << 30}, Event: func(e record.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return f
}

// sh runs a script, which must succeed, and returns its output.
func (f *fleetAtModal) sh(t *testing.T, ref, script string) string {
	t.Helper()
	x, err := f.Exec(t.Context(), "acme", ref, fleet.ExecRequest{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("exec %q: %v", script, err)
	}
	r, err := x.Wait(t.Context())
	if err != nil || r.ReturnCode != 0 {
		t.Fatalf("%q: %+v, %v", script, r, err)
	}
	return r.Stdout
}

// modalRequest is a sandbox at Modal.
func modalRequest(req spec.Request) spec.Request {
	req.Network.Mode = "none"
	return req
}

// TestModalCarriedOver checks that another sandbox at Modal takes the place of one whose lifetime exceeds Modal's
// limit.
//
// mission: A5, F3
func TestModalCarriedOver(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program, inside := inModalProcess(t)
	if !inside {
		return
	}
	const life, carry = 20 * time.Minute, time.Minute
	e := openModal(t, modalengine.Options{Dir: t.TempDir(), Executable: program, Life: life, CarryAhead: life - carry})
	f := openFleetAtModal(t, e)
	sb, err := f.Create(t.Context(), "acme", modalRequest(spec.Request{
		Name: "long", Tags: map[string]string{"a": "b"}, Env: map[string]string{"GIVEN": "to it"}, Workdir: "/srv",
		TimeoutSeconds: (2 * life).Seconds(),
		Volumes:        []spec.Mount{{Name: "data", Path: "/data"}, {Name: "data", Path: "/also"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(context.WithoutCancel(t.Context()), "acme", sb.ID); err != nil {
			t.Error(err)
		}
	})
	f.sh(t, sb.ID, `echo kept >/srv/file; echo stored >/data/file`)
	done, err := f.Exec(t.Context(), "acme", sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c", "echo said"},
		Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	run, err := f.Exec(t.Context(), "acme", sb.ID,
		fleet.ExecRequest{Args: []string{"sh", "-c", "echo begun; exec sleep 7777"}, Timeout: time.Hour,
			Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	f.until(t, record.EventCarried)
	if r, err := run.Wait(t.Context()); err != nil || r.ReturnCode == 0 || !strings.Contains(r.Reason, "carried over") {
		t.Errorf("the command that ran: %+v, %v", r, err)
	}
	now, err := f.Get(t.Context(), "acme", "long")
	if err != nil || now.ID != sb.ID || now.Status != record.Running || now.Handle == sb.Handle ||
		now.Tags["a"] != "b" || !now.Expires.Equal(sb.Expires) {
		t.Errorf("carried over: %+v, %v", now, err)
	}
	if got := f.sh(t, "long",
		`pwd; cat file /data/file /also/file; echo $GIVEN; ps ax 2>/dev/null | grep -c "[s]leep 7777"; true`); got != "/srv\nkept\nstored\nstored\nto it\n0\n" {
		t.Errorf("it has %q", got)
	}
	infos, err := f.Processes(t.Context(), "acme", sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if info.Exit == nil {
			t.Errorf("the command %v runs", info.Args)
		}
	}
	var out bytes.Buffer
	x, err := f.Attach(t.Context(), "acme", sb.ID, done.ID(), engine.Stdio{Stdout: &out})
	if err != nil {
		t.Fatalf("what a command has said before: %v", err)
	}
	if r, err := x.Wait(t.Context()); err != nil || r.ReturnCode != 0 || out.String() != "said\n" {
		t.Errorf("a command that had ended said %q, %+v, %v", out.String(), r, err)
	}
	if handles, err := e.List(t.Context()); err != nil || len(handles) != 1 || handles[0] != now.Handle {
		t.Errorf("the engine lists %v, %v, want %v", handles, err, now.Handle)
	}
}

// TestModalSnapshots checks that snapshots of sandboxes at Modal have names and a lineage, belong to accounts, and can
// start new sandboxes and forks.
//
// mission: A10
func TestModalSnapshots(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program, inside := inModalProcess(t)
	if !inside {
		return
	}
	ctx := t.Context()
	f := openFleetAtModal(t, openModal(t, modalengine.Options{Dir: t.TempDir(), Executable: program}))
	create := func(req spec.Request) record.Sandbox {
		t.Helper()
		sb, err := f.Create(ctx, "acme", modalRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Destroy(context.WithoutCancel(ctx), "acme", sb.ID); err != nil {
				t.Error(err)
			}
		})
		return sb
	}
	first := create(spec.Request{SnapshotOnEnd: true})
	f.sh(t, first.ID, "mkdir -p /srv/x && echo one >/srv/x/file")
	run, err := f.Exec(ctx, "acme", first.ID, fleet.ExecRequest{Args: []string{"sleep", "7777"}, Timeout: time.Hour,
		Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	img, err := f.Snapshot(ctx, "acme", first.ID, fleet.SnapshotOptions{Name: "mine"})
	if err != nil || !slices.Contains(img.Names, "mine") || img.Snapshot.Lineage[0].Sandbox != first.ID ||
		img.Spec.Owner != "acme" {
		t.Fatalf("Snapshot: %+v, %v", img, err)
	}
	if _, err := f.Snapshot(ctx, "acme", first.ID,
		fleet.SnapshotOptions{Path: "/srv/x"}); errors.KindOf(err) != errors.Unsupported ||
		errors.RemedyOf(err) == "" {
		t.Errorf("of a directory: %v", err)
	}
	second := create(spec.Request{Image: "mine"})
	if got := f.sh(t, second.ID, "cat /srv/x/file; echo two >>/srv/x/file"); got != "one\n" {
		t.Errorf("a sandbox from the snapshot has %q", got)
	}
	if infos, err := f.Processes(ctx, "acme", second.ID); err != nil ||
		slices.ContainsFunc(infos, func(i engine.ProcessInfo) bool { return i.ID == run.ID() }) {
		t.Errorf("it has the other one's commands: %v, %v", infos, err)
	}
	fork, err := f.Fork(ctx, "acme", second.ID, fleet.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(context.WithoutCancel(ctx), "acme", fork.ID); err != nil {
			t.Error(err)
		}
	})
	if got := f.sh(t, fork.ID, "cat /srv/x/file"); got != "one\ntwo\n" {
		t.Errorf("a fork has %q", got)
	}
	if err := f.Destroy(ctx, "acme", first.ID); err != nil {
		t.Fatal(err)
	}
	if ended, err := f.Get(ctx, "acme", first.ID); err != nil || ended.SnapshotID == "" {
		t.Errorf("the snapshot on the end: %+v, %v", ended, err)
	}
}
