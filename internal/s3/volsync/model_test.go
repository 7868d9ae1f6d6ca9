package volsync

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	smithy "github.com/aws/smithy-go"
	"github.com/minio/crc64nvme"
	"pgregory.net/rapid"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// world is the state of the model test: machines with volumes that synchronise one place, and other programs that use
// it. It knows every content ever written, and which contents were replaced or deleted by a person or program that
// could see them.
type world struct {
	t      *testing.T
	server modelServer
	b      *object.Bucket
	all    []*machine
	// written are all contents.
	written []string
	// replaced has the contents that a person or program replaced or deleted in place. All others must exist somewhere
	// at the end.
	replaced map[string]string
	// gone has the contents that were deleted, overwritten or renamed, and their paths: no sync brings them back there.
	gone map[[2]string]string
	// moved has the machine that renamed a file to a path, by path and content, and twice those that several machines
	// renamed to the same path: each of these files is a file of its own, and stays if another machine deletes its one.
	moved map[[2]string]*machine
	twice map[[2]string]bool
	// stored has the keys of the contents that other programs stored.
	stored map[string]string
	// touched has the contents whose metadata changed, and the paths: such a change is merged with another content, and
	// wins over a deletion.
	touched map[string]bool
	// unsure has the contents, and their paths, that a killed sync may have uploaded without learning of it. If another
	// machine then deletes the object, nothing tells the first one that it was there: its file counts as new.
	unsure map[[2]string]bool
	modes  modes
	log    []string // guarded by mu
	close  func()

	loc  s3.Location
	next int // number of the next sync

	mu   sync.Mutex
	runs map[string]*attempt // guarded by mu; syncs under way, by syncHeader
}

// modelServer is an S3 that the model uses, with an empty place.
type modelServer struct {
	handler http.Handler
	loc     s3.Location              // without the server's address
	objects func() map[string]string // the objects of the bucket, by key
}

// attempt is a running sync. Requests after its end are dropped, like those of a killed process.
type attempt struct {
	asked  int // guarded by world.mu
	slow   bool
	hook   func(n int) (cut bool) // may be nil
	middle int                    // the number of the request before which another sync runs; 0 for none
	other  func()                 // the other sync
	// nested counts the other sync. It must begin under world.mu: the request may be one that the attempt has given up,
	// and nothing begins after the attempt's end.
	nested sync.WaitGroup
}

// ServeHTTP implements http.Handler.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	name := r.Header.Get(syncHeader)
	w.mu.Lock()
	run, n := w.runs[name], 0
	if run != nil {
		run.asked++
		if n = run.asked; n == run.middle {
			run.nested.Add(1)
		}
	}
	w.mu.Unlock()
	if run != nil && n == run.middle {
		run.runOther()
	}
	if run == nil || run.hook != nil && run.hook(n) {
		xmlFault(rw, http.StatusForbidden, "AccessDenied")
		return
	}
	if run.slow {
		time.Sleep(2 * time.Millisecond) // the link, not the test
	}
	w.server.handler.ServeHTTP(rw, r)
}

func (run *attempt) runOther() {
	defer run.nested.Done()
	run.other()
}

// syncHeader tells a server of the model which sync sends a request. Other programs send no such header.
const syncHeader = "X-Model-Sync"

// tagged adds it to all requests.
type tagged struct {
	http.RoundTripper
	name string
}

// RoundTrip implements http.RoundTripper.
func (t tagged) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(syncHeader, t.name)
	return t.RoundTripper.RoundTrip(r)
}

// modelPaths may be files or directories. A path that is only a directory on every machine is rare.
var modelPaths = []string{"a", "a-b", "a/x", "a/x/y", "b", "c/d", "c/e", "c"}

func newWorld(t *testing.T, server modelServer) *world {
	w := &world{t: t, server: server, replaced: map[string]string{}, gone: map[[2]string]string{},
		stored:  map[string]string{},
		touched: map[string]bool{}, unsure: map[[2]string]bool{}, moved: map[[2]string]*machine{},
		twice: map[[2]string]bool{}, modes: modes{}}
	proxy := httptest.NewServer(w)
	loc := server.loc
	loc.Endpoint = proxy.URL
	w.runs = map[string]*attempt{"": {}}
	var err error
	w.b, err = object.Open(t.Context(), loc)
	must(t, err)
	w.close = func() {
		w.b.Close()
		proxy.Close()
		for _, m := range w.all {
			_, _ = os.RemoveAll(m.dir), os.RemoveAll(m.state)
		}
	}
	t.Cleanup(proxy.Close)
	w.loc = loc
	for range 3 {
		w.all = append(w.all, &machine{shmDir(t), shmDir(t), nil})
	}
	return w
}

// shmDir is a directory in memory, if available: the model does not test disks.
func shmDir(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "harvest-model-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// content returns text that no machine has written before. Most texts have the same size.
func (w *world) content(rt *rapid.T) string {
	more := ""
	if rapid.IntRange(0, 3).Draw(rt, "longer") == 0 {
		more = "and more"
	}
	return w.fresh(more)
}

func (w *world) fresh(more string) string {
	content := fmt.Sprintf("content-%06d.%s", len(w.written), more)
	w.written = append(w.written, content)
	return content
}

func (w *world) machine(rt *rapid.T) (*machine, int) {
	i := rapid.IntRange(0, len(w.all)-1).Draw(rt, "machine")
	return w.all[i], i
}

// path is one of the model's paths, or an existing one.
func (w *world) path(rt *rapid.T, m *machine) string {
	have := slices.Sorted(maps.Keys(modelFiles(w.t, m.dir)))
	return rapid.SampledFrom(append(slices.Clone(modelPaths), have...)).Draw(rt, "path")
}

// there is a file of a machine, or "".
func (w *world) there(rt *rapid.T, m *machine) string {
	have := slices.Sorted(maps.Keys(modelFiles(w.t, m.dir)))
	if len(have) == 0 {
		rt.Skip("no file")
	}
	return rapid.SampledFrom(have).Draw(rt, "file")
}

// forget records that the content at a path of a machine is replaced or deleted by an actor that sees it.
func (w *world) forget(m *machine, path, why string) {
	for name, content := range modelFiles(w.t, m.dir) {
		if name == path || strings.HasPrefix(name, path+"/") {
			w.replaced[content] = why
			w.leaves(name, content, why)
		}
	}
}

// leaves records that a content is no longer at a path. That is final if no other machine holds it with other
// metadata, since that change would win, and none renamed it to the path itself.
func (w *world) leaves(path, content, why string) {
	if at := [2]string{path, content}; !w.touched[content] && !w.twice[at] {
		w.gone[at] = why
	}
}

// room makes the directories above a path, and removes files there and at the path.
func (w *world) room(m *machine, path, why string) {
	for above := path; above != ""; above = tree.Parent(above) {
		info, err := os.Lstat(filepath.Join(m.dir, above))
		if err == nil && (above == path || !info.IsDir()) {
			w.forget(m, above, why)
			must(w.t, os.RemoveAll(filepath.Join(m.dir, above)))
		}
	}
	w.makeDirs(m, tree.Parent(path))
}

// modelFiles are the contents of a tree's files.
func modelFiles(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || tree.Temporary(path) {
			return err
		}
		raw, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(raw)
		return err
	}))
	return all
}

func (w *world) actions() map[string]func(*rapid.T) {
	all := w.moreActions()
	maps.Copy(all, map[string]func(*rapid.T){
		"create": func(rt *rapid.T) {
			m, i := w.machine(rt)
			path, content := w.path(rt, m), w.content(rt)
			w.note("%d: %s becomes %s", i, path, content)
			if info, err := os.Lstat(filepath.Join(m.dir, path)); err == nil && info.Mode().IsRegular() {
				for _, name := range w.names(m, path) {
					w.forget(m, name, "written over")
				}
			} else {
				w.room(m, path, "made way for "+content)
			}
			must(w.t, os.WriteFile(filepath.Join(m.dir, path), []byte(content), 0o644))
		},
		"disguise": func(rt *rapid.T) {
			m, i := w.machine(rt)
			path := w.there(rt, m)
			before := modelFiles(w.t, m.dir)[path]
			if len(before) < len("content-000000.") {
				w.fail(rt, "machine %d has %q at %s, not what was listed", i, before, path)
			}
			content := w.fresh(before[len("content-000000."):])
			w.note("%d: %s becomes %s, its time stays", i, path, content)
			w.forget(m, path, "edited")
			if rapid.Bool().Draw(rt, "rename") {
				full := filepath.Join(m.dir, path)
				info, err := os.Stat(full)
				must(w.t, err)
				must(w.t, os.WriteFile(full+".new", []byte(content), 0o644))
				must(w.t, os.Chtimes(full+".new", info.ModTime(), info.ModTime()))
				must(w.t, os.Rename(full+".new", full))
				return
			}
			disguise(w.t, m.dir, path, content)
		},
		"rename": func(rt *rapid.T) {
			m, i := w.machine(rt)
			from, to := w.there(rt, m), w.path(rt, m)
			if from == to || strings.HasPrefix(to, from+"/") || strings.HasPrefix(from, to+"/") {
				rt.Skip("beneath itself")
			}
			w.note("%d: %s is renamed to %s", i, from, to)
			content := modelFiles(w.t, m.dir)[from]
			w.leaves(from, content, "renamed to "+to)
			aside := filepath.Join(m.state, "renamed")
			must(w.t, os.Rename(filepath.Join(m.dir, from), aside))
			w.room(m, to, "made way for "+content)
			must(w.t, os.Rename(aside, filepath.Join(m.dir, to)))
			w.arrives(m, to, content)
		},
		"delete": func(rt *rapid.T) {
			m, i := w.machine(rt)
			path := w.there(rt, m)
			if dir := tree.Parent(path); dir != "" && rapid.Bool().Draw(rt, "directory") {
				path = dir
			}
			w.note("%d: %s is deleted", i, path)
			w.forget(m, path, "deleted")
			must(w.t, os.RemoveAll(filepath.Join(m.dir, path)))
		},
		"chmod": func(rt *rapid.T) {
			m, i := w.machine(rt)
			path, mode := w.there(rt, m), rapid.SampledFrom([]fs.FileMode{0o600, 0o640, 0o755}).Draw(rt, "mode")
			w.note("%d: %s gets %v", i, path, mode)
			w.touched[modelFiles(w.t, m.dir)[path]], w.touched[path] = true, true
			must(w.t, os.Chmod(filepath.Join(m.dir, path), mode))
		},
		"mkdir": func(rt *rapid.T) {
			m, i := w.machine(rt)
			path := rapid.SampledFrom(modelPaths).Draw(rt, "path")
			if info, err := os.Lstat(filepath.Join(m.dir, path)); err == nil && info.IsDir() {
				rt.Skip("it is there")
			}
			w.note("%d: %s becomes a directory", i, path)
			w.room(m, path, "made way for a directory")
			mode := rapid.SampledFrom([]fs.FileMode{0o755, 0o700}).Draw(rt, "mode")
			w.modes.given(path, mode)
			must(w.t, os.Mkdir(filepath.Join(m.dir, path), mode))
		},
		"foreign put": func(rt *rapid.T) {
			key, content := w.foreignKey(rt), w.content(rt)
			w.note("another program stores %s as %s", content, key)
			w.foreign(key, "stored over by another program")
			w.modes.above(key, 0o755)
			body := []byte(content)
			_, err := w.b.Put(w.t.Context(), key, body, crc64nvme.Checksum(body), nil)
			var refused smithy.APIError
			if errors.As(err, &refused) && refused.ErrorCode() == "ExistingObjectIsDirectory" {
				w.replaced[content] = "refused: an upload that ended early left a directory there"
				return
			}
			must(w.t, err)
			w.stored[content] = key
		},
		"foreign delete": func(rt *rapid.T) {
			key := w.foreignKey(rt)
			w.note("another program deletes %s", key)
			w.foreign(key, "deleted by another program")
			must(w.t, w.b.Delete(w.t.Context(), []string{key}, func(_ string, err error) { must(w.t, err) }))
		},
		"sync":    func(rt *rapid.T) { w.sync(rt, false, 0) },
		"sync 2":  func(rt *rapid.T) { w.sync(rt, false, 0) },
		"killed":  func(rt *rapid.T) { w.sync(rt, true, 0) },
		"SIGKILL": w.sigkill,
		"overlap": func(rt *rapid.T) { w.sync(rt, false, rapid.IntRange(1, 12).Draw(rt, "when")) },
	})
	return all
}

// foreignKey is a key that can be a file's: other programs do not store files below files.
func (w *world) foreignKey(rt *rapid.T) string {
	key := rapid.SampledFrom(modelPaths).Draw(rt, "key")
	for other := range w.server.objects() {
		other = strings.TrimPrefix(other, "work/")
		if strings.HasPrefix(other, key+"/") || strings.HasPrefix(key, other+"/") {
			rt.Skip("files are not beneath files")
		}
	}
	return key
}

func (w *world) foreign(key, why string) {
	if body, ok := w.server.objects()["work/"+key]; ok {
		w.replaced[body] = why
	}
}

// sync synchronises a machine: in full, cut off at some moment, or with another machine's sync in the middle.
func (w *world) sync(rt *rapid.T, killed bool, overlap int) {
	m, i := w.machine(rt)
	list := rapid.Bool().Draw(rt, "list")
	slow := rapid.IntRange(0, 7).Draw(rt, "slow") == 0
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	what := ""
	run := &attempt{slow: slow}
	switch {
	case killed:
		at, after := rapid.IntRange(1, 14).Draw(rt, "at"), rapid.Bool().Draw(rt, "after it was served")
		what = fmt.Sprintf(", killed at request %d, served: %v", at, after)
		run.hook = func(n int) bool {
			if n < at {
				return false
			}
			cancel()
			return !after || n > at
		}
	case overlap > 0:
		j := (i + rapid.IntRange(1, len(w.all)-1).Draw(rt, "other")) % len(w.all)
		otherList := rapid.Bool().Draw(rt, "other lists")
		what = fmt.Sprintf(", and at request %d comes %d, list: %v", overlap, j, otherList)
		run.middle, run.other = overlap, func() { w.syncOne(w.t.Context(), rt, j, otherList, &attempt{}) }
	}
	w.note("%d synchronises, list: %v%s", i, list, what)
	if killed {
		w.doubt(m)
	}
	w.syncOne(ctx, rt, i, list, run)
	run.nested.Wait()
	if killed && rapid.Bool().Draw(rt, "torn") {
		// State that a process had not written when it was killed is lost.
		for _, path := range glob(w.t, m.state, "*", state.Partial) {
			if info, err := os.Stat(path); err == nil {
				must(w.t, os.Truncate(path, info.Size()*int64(rapid.IntRange(0, 9).Draw(rt, "tenths"))/10))
			}
		}
		must(w.t, os.WriteFile(filepath.Join(m.dir, tree.NewTempName()), []byte("half"), 0o600))
	}
}

func glob(t *testing.T, parts ...string) []string {
	all, err := filepath.Glob(filepath.Join(parts...))
	must(t, err)
	return all
}

// begins gives a sync a name, until its end.
func (w *world) begins(run *attempt) (name string, end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	name = fmt.Sprintf("sync%d", w.next)
	w.runs[name] = run
	return name, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.runs, name)
	}
}

// doubt records the files that a sync of a machine may upload.
func (w *world) doubt(m *machine) {
	objects := w.server.objects()
	for path, content := range modelFiles(w.t, m.dir) {
		if objects["work/"+path] != content {
			w.unsure[[2]string{path, content}] = true
		}
	}
}

// sigkill synchronises a machine in a process that is killed during a request.
func (w *world) sigkill(rt *rapid.T) {
	m, i := w.machine(rt)
	at, after := rapid.IntRange(1, 14).Draw(rt, "at"), rapid.Bool().Draw(rt, "after it was served")
	list := rapid.Bool().Draw(rt, "list")
	w.note("%d synchronises in a process, list: %v, SIGKILL at request %d, served: %v", i, list, at, after)
	w.doubt(m)
	var mu sync.Mutex // held until the process is known
	var cmd *exec.Cmd
	killed := false
	mu.Lock()
	name, end := w.begins(&attempt{hook: func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		if n == at {
			_ = cmd.Process.Kill()
			killed = true
		}
		return n > at || n == at && !after
	}})
	defer end()
	spec, err := json.Marshal(modelSpec{childSpec{Location: w.loc, Dir: m.dir, State: m.state, Direction: plan.Both},
		name,
		list})
	must(w.t, err)
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "S3SYNC_TEST_CHILD="+string(spec))
	var problem strings.Builder
	cmd.Stderr = &problem
	must(w.t, cmd.Start())
	mu.Unlock()
	err = cmd.Wait()
	mu.Lock()
	defer mu.Unlock()
	w.note("   %d: %v %s", i, err, problem.String())
	if err != nil && !killed && !strings.Contains(problem.String(), object.ErrOvertaken.Error()) {
		w.fail(rt, "the process that synchronises %d ends with %v: %s", i, err, problem.String())
	}
}

func (w *world) syncOne(ctx context.Context, rt *rapid.T, i int, list bool, run *attempt) Stats {
	m, loc := w.all[i], w.loc
	name, end := w.begins(run)
	defer end()
	b, err := object.Open(w.t.Context(), loc)
	must(w.t, err)
	b.Tune(object.Tuning{Transport: func(next http.RoundTripper) http.RoundTripper { return tagged{next, name} }})
	defer b.Close()
	tree, err := tree.Open(m.dir)
	must(w.t, err)
	defer tree.Close()
	tree.Syncfs = func(int) error { return nil }
	note := func(a plan.Action) { w.note("      %d: %s %s", i, a.Op, a.Path) }
	stats, err := Sync(ctx, tree, b, Options{Direction: plan.Both, State: m.state, Owners: true, List: list,
		DeleteMany: true, Plan: note})
	if err != nil && ctx.Err() == nil && !errors.Is(err, object.ErrOvertaken) {
		w.fail(rt, "sync of %d: %v", i, err)
	}
	w.note("   %d: %s %+v %+v", i, stats, stats.Decided, stats.Failures)
	return stats
}

func (w *world) fail(rt *rapid.T, format string, args ...any) {
	rt.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

// finish synchronises until all is quiet, and compares.
func (w *world) finish(rt *rapid.T) {
	for i := range w.all {
		w.alone(rt, i)
	}
	for range 4 {
		for i := range w.all {
			w.syncOne(w.t.Context(), rt, i, true, &attempt{})
		}
	}
	want := modelSnapshot(w.t, w.all[0].dir)
	for i, m := range w.all {
		if s := w.syncOne(w.t.Context(), rt, i, i == 0,
			&attempt{}); s.Files+s.Updated+s.Deleted+s.Conflicts+s.Failed > 0 {
			w.fail(rt, "the last sync of %d is not quiet: %s %+v %+v", i, s, s.Decided, s.Failures)
		}
		if got := modelSnapshot(w.t, m.dir); !maps.Equal(got, want) {
			w.fail(rt, "machine %d has %v, machine 0 has %v", i, got, want)
		}
	}
	if path := w.modes.strange(w.t, w.all[0].dir); path != "" {
		w.fail(rt, "nobody gave it that mode: %s", path)
	}
	w.newcomer(rt, want)
	files := modelFiles(w.t, w.all[0].dir)
	have := map[string]bool{}
	objects := w.server.objects()
	for path, content := range files {
		have[content] = true
		if !slices.Contains(w.written, content) {
			w.fail(rt, "%s has %q, which nobody wrote", path, content)
		}
		if why := w.gone[[2]string{path, content}]; why != "" && !w.touched[content] && !w.touched[path] &&
			!w.unsure[[2]string{path, content}] && !strings.Contains(path, ".conflict-") {
			w.fail(rt, "%s came back at %s: it was %s", content, path, why)
		}
		if objects["work/"+path] != content {
			w.fail(rt, "the bucket does not have %s of %s", content, path)
		}
		delete(objects, "work/"+path)
	}
	for key, body := range objects {
		if !strings.HasPrefix(key, "work/"+tree.Reserved+"/") && !strings.HasSuffix(key, "/") {
			w.fail(rt, "the bucket has %s with %s, and no machine does", key, body)
		}
	}
	for _, content := range w.written {
		if !have[content] && w.replaced[content] == "" && !w.hidden(content) {
			w.fail(rt, "%s is lost: nobody replaced or deleted it", content)
		}
	}
}

// modelSnapshot is a tree without the times of directories, which change with their entries, and without hard links:
// two machines that change the names of one file at the same time may end with the same contents in one file or in two.
func modelSnapshot(t *testing.T, dir string) map[string]string {
	all := snapshot(t, dir)
	for path, line := range all {
		if strings.HasPrefix(line, "d") {
			line, _, _ = strings.Cut(line, " mtime")
		}
		all[path], _, _ = strings.Cut(line, " link to ")
	}
	return all
}
