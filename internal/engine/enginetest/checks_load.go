package enginetest

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A11

var loadChecks = []check{
	{"load/50 commands", "50 commands start at once and run at the same time, each with its own input, output and exit",
		nil, checkManyCommands},
	{"load/many sandboxes", "the harness's number of sandboxes is created at once, each with its own files", nil,
		checkManySandboxes},
	{"load/mixed", "commands, copies and Destroys at the same time do not disturb each other", nil, checkMixed},
	{"load/nothing grows",
		"200 commands, one after the other, leave no file, goroutine or memory behind in this process",
		nil, checkGrowth},
}

func checkManyCommands(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			// Each command waits until all of them have started, so that they run at the same time.
			n := strconv.Itoa(i)
			out := new(testenv.Output)
			cmd := probe.Sh(`read line; touch "$line"; while [ "$(ls | wc -l)" -lt 50 ]; do sleep 0.5; done; ` +
				`echo "$line"; seq 1 2000; exit "$line"`)
			cmd.Dir, cmd.Stdin, cmd.Stdout = dir, strings.NewReader(n+"\n"), out
			p, err := s.shared.Start(probe.Patient(t), cmd)
			if err != nil {
				t.Errorf("Start: %v", err)
				return
			}
			exit, err := p.Wait(probe.Patient(t))
			if err != nil {
				t.Errorf("Wait: %v", err)
				_ = p.Kill(probe.Patient(t)) // the failure was reported already
				return
			}
			first, rest, _ := strings.Cut(out.String(), "\n")
			if exit != (engine.Exit{Code: i}) || first != n || int64(len(rest)) != seqSize(2000) {
				t.Errorf("command %d ended with %+v, %q and %d bytes", i, exit, first, len(rest))
			}
		})
	}
	wg.Wait()
}

func checkManySandboxes(t *testing.T, s *suite) {
	s = s.separate(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []engine.Sandbox
	begin := time.Now()
	for range s.Creates {
		wg.Go(func() {
			sb, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{}))
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, sb)
		})
	}
	wg.Wait()
	t.Logf("%d sandboxes in %.1f s", len(made), time.Since(begin).Seconds())
	for _, sb := range made {
		wg.Go(func() {
			// The files are created exclusively: an existing one means that two sandboxes share a file system.
			id := sb.Handle().ID
			cmd := probe.Sh(`set -C; echo "$1" >own && cat own`)
			cmd.Dir, cmd.Args = "/tmp", append(cmd.Args, "sh", id)
			out := new(testenv.Output)
			cmd.Stdout = out
			p, err := sb.Start(probe.Patient(t), cmd)
			if err != nil {
				t.Errorf("Start: %v", err)
				return
			}
			if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{}) || out.String() != id+"\n" {
				t.Errorf("sandbox %s: %+v, %v, %q", id, exit, err, out)
			}
		})
	}
	wg.Wait()
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) != s.Creates {
		t.Errorf("List has %d, %v; want %d", len(list), err, s.Creates)
	}
	for _, sb := range made {
		wg.Go(func() { s.destroy(t, sb.Handle(), sb) })
	}
	wg.Wait()
	wantNone(t, s, "after all were destroyed")
}

func checkMixed(t *testing.T, s *suite) {
	s = s.separate(t)
	kept := s.create(t, engine.Spec{})
	probe.Put(t, kept, "/work", probe.File("file", strings.Repeat("x", 100000), 0o644))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 3 {
				sb, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{}))
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				p, err := sb.Start(probe.Patient(t), probe.Sh("sleep 600"))
				if err != nil {
					t.Errorf("Start: %v", err)
				}
				s.destroy(t, sb.Handle(), sb)
				if p != nil {
					if exit, err := p.Wait(probe.Patient(t)); err == nil && exit.Code == 0 {
						t.Errorf("Wait: %+v", exit)
					}
				}
			}
		})
		wg.Go(func() {
			for range 5 {
				r, err := kept.CopyOut(probe.Patient(t), "/work")
				if err != nil {
					t.Errorf("CopyOut: %v", err)
					return
				}
				if got := probe.Untar(t, r); len(got["file"].Content) != 100000 {
					t.Errorf("%d bytes came out", len(got["file"].Content))
				}
				r.Close()
			}
		})
		wg.Go(func() {
			for range 5 {
				out := new(testenv.Output)
				cmd := probe.Sh("wc -c <file")
				cmd.Dir, cmd.Stdout = "/work", out
				p, err := kept.Start(probe.Patient(t), cmd)
				if err != nil {
					t.Errorf("Start: %v", err)
					return
				}
				if exit, err := p.Wait(probe.Patient(t)); err != nil || exit.Code != 0 || out.String() != "100000\n" {
					t.Errorf("Wait: %+v, %v, %q", exit, err, out)
				}
			}
		})
	}
	wg.Wait()
}

// usage is this process's use of resources.
type usage struct {
	files, goroutines int
	heap              uint64
}

func used(t *testing.T) usage {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(files), runtime.NumGoroutine(), heap()}
}

func checkGrowth(t *testing.T, s *suite) {
	run := func(times int) {
		for i := range times {
			cmd := probe.Sh("cat; exit 2")
			cmd.Stdin = strings.NewReader("x")
			if i%4 == 0 && s.engine.Capabilities().Terminal {
				cmd = terminal(probe.Sh("printf x; exit 2"))
			}
			out := new(testenv.Output)
			cmd.Stdout = out
			p, err := s.shared.Start(probe.Patient(t), cmd)
			if err != nil {
				t.Fatalf("Start %d: %v", i, err)
			}
			if exit, err := p.Wait(probe.Patient(t)); err != nil || exit != (engine.Exit{Code: 2}) ||
				out.String() != "x" {
				t.Fatalf("command %d: %+v, %v, %q", i, exit, err, out)
			}
		}
	}
	run(20)
	before := used(t)
	run(200)
	grown := true
	var after usage
	for deadline := time.Now().Add(probe.Patience); grown &&
		time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		after = used(t) // an ended command may release its resources late
		grown = after.files > before.files+10 || after.goroutines > before.goroutines+10 ||
			after.heap > before.heap+16<<20
	}
	if grown {
		t.Errorf("files, goroutines and heap were %+v, and are %+v after 200 commands", before, after)
	}
}
